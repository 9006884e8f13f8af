"""Checkpoint formats as tables: what each calls a thing, and its shape here.

A new format is one more entry of ``FORMATS``.
"""
import re
from dataclasses import dataclass
from typing import Callable, Dict, Iterable, List, Optional, Tuple

from torch import Tensor

from .errors import CheckpointError

PREFIXES = ('module.', '_orig_mod.', 'backbone.', 'encoder.')
"""What wrappers put in front of names; peeled off where it stands."""


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


@dataclass(frozen=True)
class Rule:
    """How keys are renamed.

    Args:
        pattern (str): Regular expression of the whole key.
        name (str): Name here. ``\\1`` is a group, ``{last}`` the index of the
            last stage, ``{next}`` one more than the group ``stage``.
        transform (callable, optional): Reshapes the tensor.
    """

    pattern: str
    name: str
    transform: Optional[Callable[[Tensor], Tensor]] = None

    def apply(self, key: str, num_stages: int) -> Optional[str]:
        """The new name of ``key``, or None if the rule is not for it."""
        match = re.fullmatch(self.pattern, key)
        if match is None:
            return None
        stage = match.groupdict().get('stage')
        name = match.expand(self.name).replace('{last}', str(num_stages - 1))
        return name if stage is None else name.replace('{next}',
                                                       str(int(stage) + 1))


@dataclass(frozen=True)
class Format:
    """One kind of checkpoint.

    Args:
        name (str): What it is, for people.
        family (str): Class name of the backbone it is for.
        has (tuple[str]): Patterns that all occur among its keys.
        lacks (tuple[str]): Patterns none of which does.
        rules (tuple[Rule]): The first that fits renames a key.
        heads (tuple[str]): Patterns of classifier keys, left out.
        derived (tuple[str]): Patterns of buffers computed here, left out.
        plain (bool): Whether its attention is plain, so that the keys an
            attention here has beyond that are new by design.
    """

    name: str
    family: str
    has: Tuple[str, ...]
    rules: Tuple[Rule, ...]
    lacks: Tuple[str, ...] = ()
    heads: Tuple[str, ...] = ()
    derived: Tuple[str, ...] = ()
    plain: bool = False

    def fits(self, keys: Iterable[str]) -> bool:
        """Whether a checkpoint with these keys is of this format."""
        keys = list(keys)

        def occurs(pattern):
            return any(re.fullmatch(pattern, key) for key in keys)

        return all(map(occurs, self.has)) and not any(map(occurs, self.lacks))

    def leaves_out(self, key: str) -> bool:
        """Whether a key is a classifier's or a derived buffer's."""
        return any(
            re.fullmatch(pattern, key)
            for pattern in self.heads + self.derived)

    def rename(self, key: str,
               num_stages: int) -> Optional[Tuple[str, Optional[Callable]]]:
        """New name and transform of a key; None if no rule is for it."""
        for rule in self.rules:
            name = rule.apply(key, num_stages)
            if name is not None:
                return name, rule.transform
        return None


_BLOCK = r'layers\.(\d+)\.blocks\.(\d+)\.'
_HEADS = (r'(head|fc)\..*', )
_DERIVED = (r'.*\.attn_mask', r'.*relative_position_index',
            r'.*relative_coords_table')
_DOWN = r'downsample\.(norm\.weight|norm\.bias|reduction\.weight)'

_SWIN_RULES = (
    Rule(r'patch_embed\.proj\.(.*)', r'patch_embed.projection.\1'),
    Rule(r'patch_embed\.norm\.(.*)', r'patch_embed.norm.\1'),
    Rule(_BLOCK + r'mlp\.fc1\.(.*)', r'stages.\1.blocks.\2.ffn.layers.0.0.\3'),
    Rule(_BLOCK + r'mlp\.fc2\.(.*)', r'stages.\1.blocks.\2.ffn.layers.1.\3'),
    Rule(_BLOCK + r'posinfo\.(.*)', r'stages.\1.blocks.\2.attn.posinfo.\3'),
    Rule(_BLOCK + r'((?:norm1|norm2|attn)\..*)', r'stages.\1.blocks.\2.\3'),
    Rule(r'norm(\d)\.(weight|bias)', r'norm\1.\2'),
    Rule(r'norm\.(weight|bias)', r'norm{last}.\1'),
)
_MERGE_FIRST = Rule(r'layers\.(\d+)\.' + _DOWN, r'stages.\1.downsample.\2')
_MERGE_LAST = Rule(r'layers\.(?P<stage>\d+)\.' + _DOWN,
                   r'stages.{next}.downsample.\2')

_SWIN_TABLE = _BLOCK + r'attn\.relative_position_bias_table'
_CSAN_KEY = r'.*\.attn\.(u|reduce|act\.proj|ka|kv|magk|temp)\..*'
_POLA_KEY = r'.*\.attn\.qkvg\.weight'
_OWN_SWIN = (r'stages\.\d+\.blocks\.\d+\.attn\.qkv\.weight',
             r'stages\.\d+\.blocks\.\d+\.ffn\.layers\.1\.weight')
_OWN_RULES = (Rule(r'((?:patch_embed|stages|norm\d)\..*)', r'\1'), )
_FIRST_MERGE = r'layers\.0\.downsample\..*'

FORMATS = (
    Format(
        name='mmcsan Swin',
        family='SwinTransformer',
        has=_OWN_SWIN + (_CSAN_KEY, ),
        rules=_OWN_RULES,
        heads=_HEADS),
    Format(
        name='mmcsan Swin, plain attention',
        family='SwinTransformer',
        has=_OWN_SWIN,
        lacks=(_CSAN_KEY, _POLA_KEY),
        rules=_OWN_RULES,
        heads=_HEADS,
        plain=True),
    Format(
        name='CSaN Swin',
        family='SwinTransformer',
        has=(_SWIN_TABLE, _CSAN_KEY),
        lacks=(_FIRST_MERGE, ),
        rules=_SWIN_RULES + (_MERGE_FIRST, ),
        heads=_HEADS,
        derived=_DERIVED),
    Format(
        name='plain Swin (original or old timm)',
        family='SwinTransformer',
        has=(_SWIN_TABLE, _FIRST_MERGE),
        lacks=(_CSAN_KEY, _POLA_KEY),
        rules=_SWIN_RULES + (_MERGE_LAST, ),
        heads=_HEADS,
        derived=_DERIVED,
        plain=True),
    Format(
        name='plain Swin (timm)',
        family='SwinTransformer',
        has=(_SWIN_TABLE, ),
        lacks=(_CSAN_KEY, _POLA_KEY, _FIRST_MERGE),
        rules=_SWIN_RULES + (_MERGE_FIRST, ),
        heads=_HEADS,
        derived=_DERIVED,
        plain=True),
    Format(
        name='plain Swin (mmpretrain, mmdet, mmseg)',
        family='SwinTransformer',
        has=(r'stages\.\d+\.blocks\.\d+\.attn\.w_msa\.qkv\.weight', ),
        rules=(
            Rule(r'(stages\.\d+\.blocks\.\d+\.attn)\.w_msa\.(.*)', r'\1.\2'),
            Rule(
                r'stages\.(?P<stage>\d+)\.downsample\.'
                r'(norm\.weight|norm\.bias|reduction\.weight)',
                r'stages.{next}.downsample.\2', unfold_to_slices),
            Rule(r'((?:patch_embed|stages|norm\d)\..*)', r'\1'),
        ),
        heads=_HEADS,
        derived=_DERIVED,
        plain=True),
)
"""Every format that is recognised."""


def peel(state_dict: Dict[str, Tensor],
         prefix: Optional[str] = None) -> Tuple[Dict[str, Tensor], List[str]]:
    """Peel wrappers' prefixes off, and take the backbone out of a whole model.

    Args:
        state_dict (dict[str, Tensor]): Weights of a backbone, classifier,
            detector or segmentor.
        prefix (str, optional): The backbone's prefix, if it is none of
            ``PREFIXES``. Defaults to None.

    Returns:
        tuple: The backbone's weights with bare names, and the names of what
        stands beside the backbone.

    Raises:
        CheckpointError: If no key has the given prefix.
    """
    outside: List[str] = []
    if prefix and not prefix.endswith('.'):
        prefix += '.'
    for part in ([prefix] if prefix else []) + list(PREFIXES) * 2:
        inside = {
            key[len(part):]: value
            for key, value in state_dict.items() if key.startswith(part)
        }
        if inside:
            outside += [k for k in state_dict if not k.startswith(part)]
            state_dict = inside
        elif part == prefix:
            raise CheckpointError(
                f'no key starts with prefix={prefix!r}; keys look like '
                f'{", ".join(list(state_dict)[:3])}')
    return state_dict, outside


def recognize(keys: Iterable[str]) -> Format:
    """Tell the format of a checkpoint from its keys.

    Args:
        keys (Iterable[str]): Bare names, see :func:`peel`.

    Returns:
        Format: The one that fits.

    Raises:
        CheckpointError: If none or several fit; says what it looks like.
    """
    keys = list(keys)
    fitting = [fmt for fmt in FORMATS if fmt.fits(keys)]
    if len(fitting) == 1:
        return fitting[0]
    look = f'its {len(keys)} keys look like {", ".join(keys[:4])}'
    if fitting:
        names = ' and '.join(fmt.name for fmt in fitting)
        raise CheckpointError(f'it fits several formats, {names}; {look}')
    raise CheckpointError('it is no checkpoint that mmcsan knows ('
                          f'{", ".join(f.name for f in FORMATS)}); {look}. If '
                          'something unusual stands before the names of the '
                          "backbone, give it as 'prefix'")
