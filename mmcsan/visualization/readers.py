"""What each kind of attention decided, read off the tensors it worked with.

A reader is made while an attention runs and lives as long: it notes what the
attention's own methods took and returned, and reduces that to a few numbers
for each token. It computes nothing that the attention's output depends on.
"""
import math
from typing import Callable, Dict, Iterator, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mmcsan.attentions import BaseAttention, TokenLayout, pool_siblings
from .placement import spread_cells

CHUNK = 2**20
"""Weights that are held at a time."""

Quantities = Dict[str, Tensor]


class _SeeKernel(TorchFunctionMode):
    """Note what the fused attention kernel is called with."""

    def __init__(self, note: Callable) -> None:
        super().__init__()
        self.note = note

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            self.note(*args, **kwargs)
        return func(*args, **kwargs)


class Reader:
    """Reads attentions that call PyTorch's kernel, once.

    Of others it knows no weights.

    Args:
        attention (BaseAttention): The attention.
    """

    flows: Tuple[str, ...] = ('attention', )
    """Names of the sets of weights that an attention has."""

    watched: Tuple[str, ...] = ()
    """Methods besides the entry that :meth:`note` is told of."""

    entry = 'attend'
    """Method that does the attention itself."""

    def __init__(self, attention: BaseAttention) -> None:
        self.attention = attention
        self.noted: Dict[str, tuple] = {}
        self.kernel: Optional[dict] = None

    def note(self, name: str, args: tuple, result: object) -> None:
        """Be told that a method ran.

        Args:
            name (str): Its name.
            args (tuple): What it took.
            result (object): What it returned.
        """
        self.noted[name] = (args, result)

    def run(self, method: Callable, *args) -> object:
        """Run the entry, and see the kernel if there is one."""
        with _SeeKernel(self._see):
            return method(*args)

    def _see(self, query, key, value, attn_mask=None, dropout_p=0.,
             is_causal=False, scale=None, **_) -> None:
        self.kernel = dict(
            q=query.detach(),
            k=key.detach(),
            mask=None if attn_mask is None else attn_mask.detach(),
            scale=query.shape[-1]**-0.5 if scale is None else scale)

    @property
    def shape(self) -> Tuple[int, int]:
        """Groups G and queries N / s."""
        q = self.noted[self.entry][0][0]
        return q.shape[0], q.shape[-2]

    def knows_weights(self) -> bool:
        """Whether :meth:`weights` can tell."""
        return self.kernel is not None

    def weights(self, groups: Tensor, queries: Tensor) -> Tensor:
        """Rows of the attention matrix.

        Args:
            groups (Tensor): int64 (g,): of which groups.
            queries (Tensor): int64 (R,): of which of their queries.

        Returns:
            Tensor: (g, H, F, R, M), of each of ``flows`` one.
        """
        seen, heads = self.kernel, self.attention.num_heads
        outer, inner = seen['q'].shape[:2]
        # Windows may have joined the heads: both orders are group-major.
        flat = groups[:, None] * heads + torch.arange(
            heads, device=groups.device)  # (g, H)
        q, k = (seen[name].reshape(-1, *seen[name].shape[2:])[flat]
                for name in 'qk')
        q, k = at_least_float32(q[:, :, queries]), at_least_float32(k)
        logits = (q * seen['scale']) @ k.transpose(-2, -1)
        mask = seen['mask']
        if mask is not None:
            mask = mask.expand(outer, inner, seen['q'].shape[2],
                               k.shape[2])
            at = [t[..., None] for t in (flat // inner, flat % inner)]
            mask = mask[at[0], at[1], queries]  # (g, H, R, M)
            logits = logits.masked_fill(~mask, float('-inf')) if (
                mask.dtype == torch.bool) else logits + mask
        return logits.softmax(dim=-1).unsqueeze(2)

    def by_query(self) -> Quantities:
        """What each query has: (G, K, N / s) each, heads first in K."""
        return {}

    def by_key(self) -> Quantities:
        """What each key has: (G, K, M) each."""
        return {}

    def by_token(self) -> Quantities:
        """What each token has: (G, K, N) each."""
        return {}

    def constants(self) -> Quantities:
        """What does not depend on the input."""
        return {}

    def quantities(self, layout: TokenLayout) -> Quantities:
        """Everything, for each token.

        Siblings of a pooled query all have what the query has; the tokens of
        a cell of a reduced map what the cell has.

        Args:
            layout (TokenLayout): How the tokens lie.

        Returns:
            dict[str, Tensor]: (G, K, N) each.
        """
        found = {
            name: self.to_tokens(value, layout)
            for name, value in self.by_query().items()
        }
        for name, value in self.by_key().items():
            found[name] = spread_cells(value, self.attention.sr_ratio,
                                       layout.grid)
        found.update(self.by_token())
        return found

    @staticmethod
    def to_tokens(values: Tensor, layout: TokenLayout) -> Tensor:
        """From queries (G, K, N / s) to the tokens they stand for."""
        return values.repeat(1, 1, layout.q_pool)

    def entropy(self, rows: Optional[int] = None) -> Tensor:
        """Entropy of the rows, in nats, a few rows at a time.

        Args:
            rows (int, optional): At most so many queries of each group,
                evenly spaced. Defaults to None: all.

        Returns:
            Tensor: (G, H * F, N / s), NaN where it was not computed.
        """
        groups, queries = self.shape
        step = 1 if rows is None else -(-queries // rows)
        device = self.noted[self.entry][0][0].device
        wanted = torch.arange(step // 2, queries, step, device=device)
        out = None
        for part, rest in _chunks(groups, wanted, self._num_keys(),
                                  self.attention.num_heads):
            weights = self.weights(part, rest)
            weights = weights / weights.sum(dim=-1, keepdim=True)
            found = torch.special.entr(weights).sum(dim=-1).flatten(1, 2)
            if out is None:
                out = found.new_full((groups, found.shape[1], queries),
                                     math.nan)
            out[part[:, None], :, rest] = found.transpose(1, 2)
        return out

    def _num_keys(self) -> int:
        return self.noted[self.entry][0][1].shape[-2]

    def rows(self, groups: Tensor, query: int) -> Optional[Tensor]:
        """The attention of one query.

        Args:
            groups (Tensor): int64 (g,): of which groups.
            query (int): Which of their queries.

        Returns:
            Tensor: (g, H, F, M); or None if this kind of attention does not
            tell.
        """
        if not self.knows_weights():
            return None
        return self.weights(groups, groups.new_tensor([query]))[..., 0, :]


def at_least_float32(x: Tensor) -> Tensor:
    """16 bits are too few to sum up what is read."""
    low = x.dtype in (torch.float16, torch.bfloat16)
    return x.float() if low else x


def _chunks(groups: int, queries: Tensor, keys: int,
            heads: int) -> Iterator[Tuple[Tensor, Tensor]]:
    """Groups and queries whose weights make a chunk."""
    row = keys * heads
    group_step = max(CHUNK // (row * len(queries)), 1)
    step = len(queries) if group_step > 1 else max(CHUNK // row, 1)
    every = torch.arange(groups, device=queries.device)
    for part in every.split(group_step):
        for rest in queries.split(step):
            yield part, rest


class CSaNReader(Reader):
    """Reads CSaN: what it compensates, and softmax(tau s)."""

    watched = ('describe', 'compensate')

    def knows_weights(self) -> bool:
        """See :meth:`Reader.knows_weights`."""
        return True

    def _compensation(self):
        return self.noted['compensate'][1]

    def weights(self, groups: Tensor, queries: Tensor) -> Tensor:
        """See :meth:`Reader.weights`; before columns are amplified."""
        (q, k, _, _, layout), _ = self.noted['attend']
        q = at_least_float32(q[groups][:, :, queries])
        k = at_least_float32(k[groups])
        logits = (q * self.attention.scale) @ k.transpose(-2, -1)
        bias = self.attention._bias(q.dtype, layout)
        if bias is not None:
            logits = logits + _of_windows(bias, groups, queries)
        tau = self._compensation().temperature[groups][:, :, queries]
        logits = logits * tau
        hidden = self.attention._hidden(layout)
        if hidden is not None:
            logits = logits.masked_fill(
                _of_windows(hidden, groups, queries), float('-inf'))
        return logits.softmax(dim=-1).unsqueeze(2)

    def by_query(self) -> Quantities:
        """See :meth:`Reader.by_query`."""
        comp = self._compensation()
        (_, _, v, _, layout), out = self.noted['attend']
        private = self.attention._own_values(v, layout) * comp.private
        private = at_least_float32(pool_siblings(private, layout, 'mean'))
        public = at_least_float32(out) - private
        return dict(
            temperature=comp.temperature.squeeze(-1),
            public_gain=_channels(comp.public),
            public_energy=public.square().mean(dim=-1),
            private_energy=private.square().mean(dim=-1))

    def by_key(self) -> Quantities:
        """See :meth:`Reader.by_key`."""
        return dict(amplification=self._compensation().column.squeeze(-1))

    def by_token(self) -> Quantities:
        """See :meth:`Reader.by_token`."""
        z = self.noted['describe'][1]
        return dict(
            descriptor=z.transpose(1, 2),
            private_gain=_channels(self._compensation().private))


def _channels(gain: Tensor) -> Tensor:
    """(G, H, N, c) to (G, H * c, N)."""
    return gain.transpose(2, 3).flatten(1, 2)


def _of_windows(table: Tensor, groups: Tensor, queries: Tensor) -> Tensor:
    """Of (W or 1, H or 1, N or 1, M), what some queries of groups have."""
    table = table[groups % table.shape[0]]
    return table if table.shape[2] == 1 else table[:, :, queries]
