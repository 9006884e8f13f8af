"""Record what attentions decide, while a model runs."""
import contextlib
import sys
from dataclasses import dataclass, field
from typing import (Callable, Dict, Iterator, List, Optional, Sequence, Tuple,
                    Union)

import torch
import torch.nn as nn
from torch import Tensor

from mmcsan.attentions import BaseAttention, TokenLayout
from mmcsan.plugging.hosts import InWindows
from .placement import (Placement, place_tokens, spread_cells, stem_stride,
                        token_stride)
from .pola_readers import reader_for
from .readers import Reader

Point = Union[int, Tuple[float, float]]
Where = Callable[[str], bool]

_FIRST = 'project'
"""Method that each attention begins with, told of tokens and layout."""


@dataclass
class AttentionRecord:
    """What one attention decided in the last forward.

    Args:
        name (str): Its name within the model.
        kind (str): Its class.
        num_heads (int): Heads H.
        flows (tuple[str]): Names of the sets of weights that it has.
        size (tuple[int, int], optional): Height h and width w of its map, in
            tokens. None if another project's network cut its groups, so that
            nothing is known of where they lie.
        input_size (tuple[int, int]): Height and width of the network's input,
            in pixels.
        stride (tuple[int, int]): Pixels from one token to the next, down and
            to the right.
        maps (dict[str, Tensor]): What :data:`mmcsan.visualization.QUANTITIES`
            lists, (B, K, h, w) each, heads first in K; NaN where it was not
            computed. Without a size (G, K, N), as the groups were.
        rows (Tensor, optional): (B, points, H, flows, h, w): how much each
            of the points that were asked for attends to each token. What
            goes to tokens that lie nowhere (class token) is not on it.
        constants (dict[str, Tensor]): What does not depend on the input, such
            as Pola's powers (H, d).
    """

    name: str
    kind: str
    num_heads: int
    flows: Tuple[str, ...]
    size: Optional[Tuple[int, int]]
    input_size: Tuple[int, int]
    stride: Tuple[int, int]
    maps: Dict[str, Tensor] = field(default_factory=dict)
    rows: Optional[Tensor] = None
    constants: Dict[str, Tensor] = field(default_factory=dict)

    def per_head(self, name: str) -> Tensor:
        """A map with one value a head: the mean over what a head has.

        Args:
            name (str): Which map.

        Returns:
            Tensor: (B, H, h, w).
        """
        # (B, H * c, h, w) -> (B, H, c, h, w)
        return self.maps[name].float().unflatten(
            1, (self.num_heads, -1)).mean(dim=2)


class _Recorder:
    """Listens to one attention; see :func:`record_attention`."""

    def __init__(self, name: str, attention: BaseAttention,
                 session: '_Session') -> None:
        self.name = name
        self.attention = attention
        self.session = session
        self.reader: Optional[Reader] = None
        self.plan: object = None
        self.layout: Optional[TokenLayout] = None

    def note_block(self, block: nn.Module, args: tuple) -> None:
        """Before the block that the attention is in: what cut its groups."""
        self.plan = args[1] if len(args) > 1 else None

    @contextlib.contextmanager
    def tapped(self) -> Iterator[None]:
        """Have the attention's methods tell the reader what they do."""
        blank = reader_for(self.attention)
        names = dict.fromkeys((_FIRST, *blank.watched, blank.entry))
        for name in names:
            method = getattr(self.attention, name)
            vars(self.attention)[name] = self._tap(name, method, blank.entry)
        try:
            yield
        finally:
            for name in names:
                del vars(self.attention)[name]

    def _tap(self, name: str, method: Callable, entry: str) -> Callable:

        def told(*args, **kwargs):
            if self.name in self.session.records or kwargs:
                return method(*args, **kwargs)
            if name == _FIRST:
                self.reader, self.layout = reader_for(self.attention), args[1]
            if name != entry:
                result = method(*args)
                self.reader.note(name, args, result)
                return result
            result = self.reader.run(method, *args)
            self.reader.note(name, args, result)
            self._finish()
            return result

        return told

    @torch.no_grad()
    def _finish(self) -> None:
        reader, self.reader = self.reader, None
        x = reader.noted[reader.entry][0][0]
        with torch.autocast(x.device.type, enabled=False):
            self.session.records[self.name] = self._read(reader, x)

    def _read(self, reader: Reader, x: Tensor) -> AttentionRecord:
        layout, session = self.layout, self.session
        found = {
            name: value.detach().clone()
            for name, value in reader.quantities(layout).items()
        }
        if session.entropy and reader.knows_weights():
            rows = None if session.entropy is True else session.entropy
            found['entropy'] = reader.to_tokens(reader.entropy(rows), layout)
        placement = self._placement(x)
        record = AttentionRecord(
            self.name,
            type(self.attention).__name__, self.attention.num_heads,
            reader.flows, None, session.input_size, (1, 1), found,
            constants={
                name: value.detach().clone()
                for name, value in reader.constants().items()
            })
        if placement is None:
            return record
        record.size = placement.size
        record.stride = tuple(map(token_stride, session.input_size,
                                  placement.size, session.stem))
        record.maps = {
            name: placement.to_map(value) for name, value in found.items()
        }
        if session.points:
            record.rows = self._rows(reader, placement, record)
        return record

    def _placement(self, x: Tensor) -> Optional[Placement]:
        """Where the tokens lie, or None."""
        cut = hasattr(self.plan, 'split')
        whole = x.shape[0] == self.session.batch and not isinstance(
            self.attention, InWindows)
        if not cut and not whole:
            return None
        return place_tokens(self.plan, self.layout, x.device)

    def _rows(self, reader: Reader, placement: Placement,
              record: AttentionRecord) -> Optional[Tensor]:
        """Attention of the points: (B, points, H, F, h, w)."""
        found = []
        for point in self._points(record):
            total = 0
            for group, token in self._tokens(placement, point):
                row = self._row(reader, placement, group, token)
                if row is None:
                    return None
                total = total + row
            found.append(total)
        return torch.stack(found, dim=1)

    def _points(self, record: AttentionRecord) -> List[Point]:
        """The points as (row, column) of the map, or tokens of the prefix."""
        height, width = record.size
        if self.session.points == 'all':
            return [(y, x) for y in range(height) for x in range(width)]
        return [
            point if isinstance(point, int) else tuple(
                min(max(int(p // s), 0), n - 1)
                for p, s, n in zip(point, record.stride, record.size))
            for point in self.session.points
        ]

    def _tokens(self, placement: Placement,
                point: Point) -> List[Tuple[int, int]]:
        """Groups and tokens that a point is: a token of the prefix is in
        every group."""
        if not isinstance(point, int):
            return [placement.find(*point)]
        if point >= self.layout.prefix:
            raise ValueError(
                f'rows={point}: {self.name} has {self.layout.prefix} tokens '
                'in front of its grid; ask for a point (y, x)')
        return [(group, point) for group in range(placement.groups)]

    def _row(self, reader: Reader, placement: Placement, group: int,
             token: int) -> Optional[Tensor]:
        groups, queries = reader.shape
        each = torch.arange(
            group, groups, placement.groups, device=placement.places.device)
        row = reader.rows(each, token % queries)  # (B, H, F, M)
        if row is None:
            return None
        flat = spread_cells(
            row.flatten(1, 2),
            self.attention.sr_ratio,
            self.layout.grid,
            share=True)
        return placement.group_map(flat, group).unflatten(1, row.shape[1:3])


class _Session:
    """What the recorders of one context share."""

    def __init__(self, points, entropy: Union[bool, int]) -> None:
        self.records: Dict[str, AttentionRecord] = {}
        self.points = points if points == 'all' else list(points)
        self.entropy = entropy
        self.input_size = self.stem = (1, 1)
        self.batch = 0

    def begin(self, backbone: nn.Module, args: tuple) -> None:
        """Before the backbone: forget the last forward."""
        self.records.clear()
        self.batch = args[0].shape[0]
        self.input_size = tuple(args[0].shape[-2:])
        self.stem = stem_stride(backbone)


def _parent(model: nn.Module, name: str) -> nn.Module:
    return model.get_submodule(name.rpartition('.')[0])


def _backbone(model: nn.Module) -> nn.Module:
    inner = getattr(model, 'backbone', None)
    return inner if isinstance(inner, nn.Module) else model


@contextlib.contextmanager
def record_attention(
    model: nn.Module,
    rows: Union[str, Sequence[Point]] = (),
    entropy: Union[bool, int] = False,
    where: Optional[Where] = None
) -> Iterator[Dict[str, AttentionRecord]]:
    """Record what the attentions of a model decide, without changing it.

    Within the context each forward of the model's backbone leaves a record
    for each attention; the next forward replaces it. Outputs and gradients
    are bit for bit what they are without. Outside of the context nothing is
    kept, nothing computed.

    Compiled backbones run uncompiled within the context.

    Args:
        model (nn.Module): A backbone; or a detector, segmentor or classifier
            with one under ``backbone``.
        rows (Sequence | str): Points whose attention is wanted, each (y, x) in
            pixels of the network's input, or an int, the number of a token in
            front of the grid (0 is the class token); or ``'all'``: of every
            token, which needs N x N numbers. Defaults to none.
        entropy (bool | int): Whether the entropy of every row is computed, in
            chunks of rows; or at most how many rows of each group.
            Defaults to False.
        where (callable, optional): Function of the name of an attention that
            tells whether to record it. Defaults to None: all.

    Yields:
        dict[str, AttentionRecord]: The records by the names of the
        attentions, filled by a forward, in order.

    Raises:
        ValueError: If there is no attention to record.

    Examples:
        >>> import torch
        >>> from mmcsan.backbones import SwinTransformer
        >>> from mmcsan.visualization import record_attention
        >>> model = SwinTransformer('swin-min').eval()
        >>> with torch.no_grad(), record_attention(
        ...         model, rows=[(40, 60)]) as records:
        ...     _ = model(torch.rand(1, 3, 97, 131))
        >>> record = records['stages.1.blocks.0.attn']
        >>> tuple(record.maps['temperature'].shape)
        (1, 6, 13, 17)
        >>> tuple(record.rows.shape)
        (1, 1, 6, 1, 13, 17)
    """
    chosen = [(name, module) for name, module in model.named_modules()
              if isinstance(module, BaseAttention)
              and (where is None or where(name))]
    if not chosen:
        raise ValueError(
            f'{type(model).__name__} has no attention of mmcsan to record'
            + (' whose name is wanted' if where else ''))
    session = _Session(rows, entropy)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_uncompiled())
        stack.callback(
            _backbone(model).register_forward_pre_hook(session.begin).remove)
        for name, attention in chosen:
            recorder = _Recorder(name, attention, session)
            if name:
                block = _parent(model, name)
                stack.callback(
                    block.register_forward_pre_hook(
                        recorder.note_block).remove)
            stack.enter_context(recorder.tapped())
        yield session.records


def _uncompiled() -> contextlib.AbstractContextManager:
    """Let what is compiled run as it was written."""
    # What is compiled has loaded this; loading it takes seconds.
    if 'torch._dynamo' in sys.modules:
        return torch.compiler.set_stance('force_eager')
    return contextlib.nullcontext()
