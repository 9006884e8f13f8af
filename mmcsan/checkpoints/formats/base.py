"""What a checkpoint format is made of: a table, and few ways to reshape.

How to add a family of backbones
--------------------------------
Write ``formats/<family>.py`` with a tuple of :class:`Format` and add it to
``FORMATS`` in ``formats/__init__.py``. For each kind of file:

* ``has`` and ``lacks`` tell it from every other by its bare keys: a file must
  fit exactly one format. Keys are bare once what wraps a network
  (``module.``, ``backbone.``, ``_orig_mod.``, ...) is peeled off, which needs
  ``roots``: the first words of bare keys.
* ``rules`` name each key here. The first one that fits is taken::

      # the groups of the pattern, \\1 and so on
      Rule(r'norm\\.(weight|bias)', r'norm{last}.\\1')
      # {next}, {prev}: one more, one less than the group called stage
      Rule(r'block(?P<stage>\\d)\\.(.*)', r'stages.{prev}.\\2')
      # a place that must be computed, from all keys and shapes
      Rule(r'blocks\\.(\\d+)\\.(.*)', lambda match, weights: ...)
      # another layout of the numbers
      Rule(r'fc\\.weight', r'fc.weight', conv_to_linear)
      # a fused tensor that is apart here: cut evenly, or by the transform
      Rule(r'qkv\\.(.*)', (r'q.\\1', r'kv.\\1'), cut(1, 2))
      # tensors apart that are fused here: part (which, of how many)
      Rule(r'q\\.(.*)', r'qkv.\\1', part=(0, 3))

  The transform comes before a join; two keys of one place are an error.
* ``heads``: keys of classifiers. ``derived``: buffers computed here. Both are
  left out and reported as dropped.
* ``new``: keys of the *backbone* that such a file lacks by design: all that
  a pattern is for, or it is damaged. Output norms of maps that classifiers do
  not normalise, and with ``plain`` what an attention here has beyond plain
  attention, need no entry.
* ``family``: class name of the backbone. ``attention``: what to set so that
  the backbone has the file's attention; for errors alone.
* ``guess``: the arch that weights under our names are of, for the tools.

Tables of positions are resized by the loader, in 2-D, if the module that has
the parameter says on which grid it lies: ``position_grids``, a dict (or
property) of the parameter's own name to (height, width). The length beyond
height * width is that of prefix tokens. Tables are (1, N, C), (N, C) or maps
(1, C, h, w); relative-position tables need ``grid_size`` of the attention
only.
"""
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Callable, Dict, Iterable, List, Optional, Tuple, Union

import torch
from torch import Tensor

from ..errors import CheckpointError

Name = Union[str, Tuple[str, ...], Callable[[re.Match, Dict[str, Tensor]],
                                            str]]

OUTPUT_NORMS = r'norm\d+\..*'
"""For ``new`` of a family whose classifiers may normalise what they pool, and
no map; also of such a classifier under our names."""

compiled = lru_cache(maxsize=None)(re.compile)


def unfold_to_slices(weight: Tensor) -> Tensor:
    """Reorder a patch-merging tensor from unfold's channels to slices'.

    ``nn.Unfold`` gives (channel, row, column); ours are four blocks of
    channels, (row, column) = (0,0), (1,0), (0,1), (1,1).

    Args:
        weight (Tensor): (..., 4C).

    Returns:
        Tensor: (..., 4C).
    """
    # (..., 4C) -> (..., C, 4) -> (..., 4, C) -> (..., 4C)
    blocks = weight.unflatten(-1, (-1, 4)).transpose(-2, -1)
    return blocks[..., [0, 2, 1, 3], :].flatten(-2)


def linear_to_conv(weight: Tensor) -> Tensor:
    """Weights of a linear layer as those of a 1x1 convolution.

    Args:
        weight (Tensor): (C_out, C_in); anything else, such as a bias or what
            is a convolution's already, is returned as it is.

    Returns:
        Tensor: (C_out, C_in, 1, 1).
    """
    return weight[..., None, None] if weight.dim() == 2 else weight


def conv_to_linear(weight: Tensor) -> Tensor:
    """Weights of a 1x1 convolution as those of a linear layer.

    Args:
        weight (Tensor): (C_out, C_in, 1, 1); anything else, such as a bias or
            what is a linear layer's already, is returned as it is.

    Returns:
        Tensor: (C_out, C_in).
    """
    if weight.dim() == 4 and tuple(weight.shape[2:]) == (1, 1):
        return weight[:, :, 0, 0]
    return weight


def cut(*parts: int) -> Callable[[Tensor], Tuple[Tensor, ...]]:
    """A transform that cuts the rows of a fused tensor in proportion.

    Args:
        *parts (int): Sizes of the pieces, in equal blocks of rows.

    Returns:
        callable: (sum(parts) * n, ...) to one tensor (part * n, ...) each.
    """

    def transform(value: Tensor) -> Tuple[Tensor, ...]:
        block, rest = divmod(len(value), sum(parts))
        if rest:
            raise CheckpointError(f'a tensor of shape {tuple(value.shape)} '
                                  f'is no {sum(parts)} equal blocks')
        return value.split([part * block for part in parts])

    return transform


@dataclass(frozen=True)
class Rule:
    """How keys are renamed; see the module's text for examples.

    Args:
        pattern (str): Regular expression of the whole key.
        name (str | tuple[str] | callable): Name here. ``\\1`` is a group,
            ``{last}`` the index of the last stage, ``{next}`` and ``{prev}``
            one more and one less than the group ``stage``. Several names take
            a piece each. A function gets the match and all weights under
            their bare names, and returns a name.
        transform (callable, optional): Reshapes the tensor, or cuts it into
            as many as there are names. Defaults to None: as it is; several
            names take equal pieces of the rows.
        part (tuple[int, int], optional): Which part, of how many, the tensor
            is of one that is fused here; rows are joined in order.
    """

    pattern: str
    name: Name
    transform: Optional[Callable] = None
    part: Optional[Tuple[int, int]] = None

    def apply(self, key: str, weights: Dict[str, Tensor],
              num_stages: int) -> Optional[Tuple[str, ...]]:
        """The new names of ``key``, or None if the rule is not for it."""
        match = compiled(self.pattern).fullmatch(key)
        if match is None:
            return None
        if callable(self.name):
            return self.name(match, weights),
        names = (self.name, ) if isinstance(self.name, str) else self.name
        values = {'{last}': num_stages - 1}
        stage = match.groupdict().get('stage')
        if stage is not None:
            values.update({'{next}': int(stage) + 1, '{prev}': int(stage) - 1})
        out = []
        for name in names:
            name = match.expand(name)
            for word, value in values.items():
                name = name.replace(word, str(value))
            out.append(name)
        return tuple(out)

    def pieces(self, value: Tensor) -> Tuple[Tensor, ...]:
        """The tensor as it is here: one for each name."""
        if isinstance(self.name, tuple):
            cutter = self.transform or cut(*[1] * len(self.name))
            return tuple(cutter(value))
        return (self.transform(value) if self.transform else value, )


@dataclass
class Renamed:
    """Weights under the names used here.

    Args:
        weights (dict[str, Tensor]): The backbone's weights.
        dropped (list[str]): Keys of heads and of derived buffers.
        unexpected (list[str]): Keys that no rule names, and parts of a fused
            tensor whose other parts are not there.
    """

    weights: Dict[str, Tensor] = field(default_factory=dict)
    dropped: List[str] = field(default_factory=list)
    unexpected: List[str] = field(default_factory=list)


@dataclass(frozen=True)
class Format:
    """One kind of checkpoint; see the module's text.

    Args:
        name (str): What it is, for people.
        family (str): Class name of the backbone it is for.
        has (tuple[str]): Patterns that all occur among its keys.
        rules (tuple[Rule]): The first that fits renames a key.
        lacks (tuple[str]): Patterns none of which occurs. Defaults to ().
        heads (tuple[str]): Patterns of classifier keys, left out.
        derived (tuple[str]): Patterns of buffers computed here, left out.
        new (tuple[str]): Patterns of keys of the backbone that such a
            checkpoint lacks by design, all that a pattern fits.
        plain (bool): Whether its attention is plain, so that the keys an
            attention here has beyond that are new by design.
        attention (str): What to set to have its attention.
        roots (tuple[str]): First words of its bare keys.
        stages (str): Pattern of the start of a key whose group is the number
            of a stage; the greatest, less that of the first, is ``{last}``.
        first_stage (int): Number of the first stage there.
        guess (callable, optional): Arch and attention, a dict, of weights
            under our names.
    """

    name: str
    family: str
    has: Tuple[str, ...]
    rules: Tuple[Rule, ...]
    lacks: Tuple[str, ...] = ()
    heads: Tuple[str, ...] = ()
    derived: Tuple[str, ...] = ()
    new: Tuple[str, ...] = ()
    plain: bool = False
    attention: str = ''
    roots: Tuple[str, ...] = ('patch_embed', 'layers', 'stages')
    stages: str = r'(?:stages|layers)\.(\d+)\.'
    first_stage: int = 0
    guess: Optional[Callable[[Dict[str, Tensor]], dict]] = None

    def fits(self, keys: Iterable[str]) -> bool:
        """Whether a checkpoint with these bare keys is of this format."""
        keys = list(keys)

        def occurs(pattern: str) -> bool:
            return any(map(compiled(pattern).fullmatch, keys))

        return all(map(occurs, self.has)) and not any(map(occurs, self.lacks))

    def leaves_out(self, key: str) -> bool:
        """Whether a key is a classifier's or a derived buffer's."""
        return _any(self.heads + self.derived, key)

    def lacks_by_design(self, key: str, found: Iterable[str]) -> bool:
        """Whether a key of the backbone is new by design.

        Args:
            key (str): A key of the backbone.
            found (Iterable[str]): Our names of what a checkpoint has. One
                that has a part of what a pattern is for is damaged.
        """
        return any(
            compiled(pattern).fullmatch(key) and not any(
                map(compiled(pattern).fullmatch, found))
            for pattern in self.new)

    def count_stages(self, keys: Iterable[str]) -> int:
        """Number of stages that bare keys speak of."""
        found = map(compiled(self.stages).match, keys)
        return max((int(match[1]) - self.first_stage + 1
                    for match in found if match), default=0)

    def rename(self, weights: Dict[str, Tensor]) -> Renamed:
        """Bring all weights under the names and into the shapes used here.

        Args:
            weights (dict[str, Tensor]): Under their bare names.

        Returns:
            Renamed: What became of every key.

        Raises:
            CheckpointError: If two keys have one place here, or a tensor
                cannot be cut as it has to be.
        """
        done, origin, parts = Renamed(), {}, {}
        stages = self.count_stages(weights)

        def claim(place, key: str) -> None:
            if origin.setdefault(place, key) != key:
                raise CheckpointError(
                    f'{origin[place]} and {key} of {self.name} both are '
                    f'{place if isinstance(place, str) else place[0]} here')

        for key, value in weights.items():
            if self.leaves_out(key):
                done.dropped.append(key)
                continue
            found = self._find(key, weights, stages)
            if found is None:
                done.unexpected.append(key)
                continue
            rule, names = found
            for name, piece in zip(names, _pieces(rule, key, value)):
                if rule.part is None:
                    claim(name, key)
                    done.weights[name] = piece
                else:
                    claim((name, rule.part[0]), key)
                    parts.setdefault(name, {})[rule.part] = key, piece
        _join(parts, origin, done)
        return done

    def _find(self, key: str, weights: Dict[str, Tensor],
              stages: int) -> Optional[Tuple[Rule, Tuple[str, ...]]]:
        for rule in self.rules:
            names = rule.apply(key, weights, stages)
            if names is not None:
                return rule, names
        return None


def _any(patterns: Iterable[str], key: str) -> bool:
    return any(compiled(pattern).fullmatch(key) for pattern in patterns)


def _pieces(rule: Rule, key: str, value: Tensor) -> Tuple[Tensor, ...]:
    try:
        return rule.pieces(value)
    except (CheckpointError, RuntimeError, IndexError, TypeError) as e:
        raise CheckpointError(f'{key} of shape {tuple(value.shape)} cannot '
                              f'be brought into shape: {e}') from e


def _join(parts: Dict[str, dict], origin: dict, done: Renamed) -> None:
    """Join what is fused here; incomplete joins have no place."""
    for name, found in parts.items():
        if name in done.weights:
            keys = [key for key, _ in found.values()]
            raise CheckpointError(f'{origin[name]} and {", ".join(keys)} all '
                                  f'are {name} here')
        count = next(iter(found))[1]
        if sorted(found) == [(index, count) for index in range(count)]:
            done.weights[name] = torch.cat(
                [found[index, count][1] for index in range(count)])
        else:
            done.unexpected += [key for key, _ in found.values()]
