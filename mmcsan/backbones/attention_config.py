"""The argument ``attention`` of every backbone: checked, for each block."""
import inspect
from typing import Any, Dict, List, Sequence, Set

from mmcsan.arguments import FLAG, INIT, RATE, Allowed, integer, number, one_of
from mmcsan.attentions import BaseAttention, CSaN, Pola, attention_class
from mmcsan.registry import unknown_name
from .base import per_block

DECIDED = ('dim', 'num_heads', 'grid_size', 'dim_out', 'sr_ratio')
"""What backbones alone decide, whether they pass it or leave its default."""

ARGUMENTS: Dict[type, Dict[str, Allowed]] = {
    BaseAttention:
    dict(
        rel_pos_bias=FLAG,
        qkv_bias=FLAG,
        attn_drop=RATE,
        proj_drop=RATE,
        qk_norm=FLAG,
        init_cfg=INIT),
    CSaN:
    dict(
        variant=one_of('unbounded', 'bounded'),
        granularity=one_of('unit', 'head'),
        posinfo=FLAG,
        init=one_of('paper', 'identity'),
        hard_shift_mask=FLAG),
    Pola:
    dict(
        alpha=number(least=0),
        kernel_size=integer(odd=True),
        hard_shift_mask=FLAG),
}
"""What the arguments of attentions may be, by the class that has them."""


def spread_attention(value: Any, depths: Sequence[int]) -> List[list]:
    """The attention of each block; its arguments are checked.

    Args:
        value (str | dict | list): What was given as ``attention``.
        depths (Sequence[int]): Number of blocks of each stage.

    Returns:
        list[list]: A name or a config, ``result[stage][block]``.

    Raises:
        KeyError: If an attention is unknown; lists the known ones.
        TypeError: If one has no such argument, or the backbone decides it.
        ValueError: If an argument is not what it may be, or a list is as
            long as neither stages nor blocks.
    """
    spread = per_block(value, depths, 'attention')
    for stage in spread:
        for cfg in stage:
            _check(cfg)
    return spread


def _check(cfg: Any) -> None:
    cls = attention_class(cfg)
    given = dict(cfg) if isinstance(cfg, dict) else {}
    given.pop('type', None)
    decided = [name for name in DECIDED if name in given]
    if decided:
        raise TypeError(f'attention={cfg!r} sets {", ".join(decided)}, which '
                        'the backbone decides')
    takes = _takes(cls) - set(DECIDED)
    for name, entry in given.items():
        if name not in takes:
            raise TypeError(unknown_name(
                f'argument of attention={cls.__name__!r}', name, takes))
        for base in cls.__mro__:
            allowed = ARGUMENTS.get(base, {}).get(name)
            if allowed is not None:
                allowed.check(f'attention: {name}', entry)
                break


def _takes(cls: type) -> Set[str]:
    """Names of what a class can be built with; those that it passes on to
    its bases are theirs."""
    names: Set[str] = set()
    for base in cls.__mro__:
        if '__init__' not in vars(base):
            continue
        parameters = list(inspect.signature(base.__init__).parameters.values())
        names.update(p.name for p in parameters[1:]
                     if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return names
