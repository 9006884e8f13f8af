"""ViT: this project's, CSaN's, and those of plain ViT, DeiT and MAE."""
from typing import Dict, Tuple, Union

from torch import Tensor

from .base import OUTPUT_NORMS, Format, Rule

_BLOCK = r'blocks\.(\d+)\.'
_LAYER = r'layers\.(\d+)\.'
_HEADS = (r'(head|head_dist|head_drop|fc|pre_logits)\..*',
          r'(decoder_.*|mask_token)')
_POOLED = r'fc_norm\.(weight|bias)'
"""A norm of the pooled token: it is the head's."""

_STEM = (
    Rule(r'patch_embed\.proj\.(.*)', r'patch_embed.projection.\1'),
    Rule(r'(cls_token|reg_token|pos_embed)', r'\1'),
    # A distillation token is one more that lies on no grid.
    Rule(r'dist_token', r'reg_token'),
    Rule(r'norm\.(weight|bias)', r'norm{last}.\1'),
)
_TIMM = _STEM + (
    Rule(_BLOCK + r'mlp\.fc1\.(.*)', r'blocks.\1.ffn.layers.0.0.\2'),
    Rule(_BLOCK + r'mlp\.fc2\.(.*)', r'blocks.\1.ffn.layers.1.\2'),
    Rule(_BLOCK + r'(?:ls1\.gamma|gamma_1)', r'blocks.\1.ls1.weight'),
    Rule(_BLOCK + r'(?:ls2\.gamma|gamma_2)', r'blocks.\1.ffn.gamma2.weight'),
    Rule(_BLOCK + r'((?:norm1|norm2|attn)\..*)', r'blocks.\1.\2'),
)
_MMPRETRAIN = _STEM + (
    Rule(r'patch_embed\.projection\.(.*)', r'patch_embed.projection.\1'),
    Rule(r'(?:ln1|norm1)\.(weight|bias)', r'norm{last}.\1'),
    Rule(_LAYER + r'(?:ln|norm)([12])\.(.*)', r'blocks.\1.norm\2.\3'),
    Rule(_LAYER + r'attn\.gamma1\.weight', r'blocks.\1.ls1.weight'),
    # mmseg keeps torch's own attention within mmcv's.
    Rule(_LAYER + r'attn\.attn\.in_proj_(weight|bias)',
         r'blocks.\1.attn.qkv.\2'),
    Rule(_LAYER + r'attn\.attn\.out_proj\.(.*)', r'blocks.\1.attn.proj.\2'),
    Rule(_LAYER + r'((?:attn\.(?:qkv|proj)|ffn)\..*)', r'blocks.\1.\2'),
)
_OWN = (_BLOCK + r'attn\.(qkv|qkvg)\.weight',
        _BLOCK + r'ffn\.layers\.1\.weight',
        r'patch_embed\.projection\.weight')
_OWN_RULES = (Rule(
    r'((?:patch_embed|blocks|norm\d+)\..*|cls_token|reg_token|pos_embed)',
    r'\1'), )

_CSAN_KEY = r'.*\.attn\.(u|reduce|act\.proj|ka|kv|magk|temp)\..*'
_POLA_KEY = r'.*\.attn\.(qkvg\.weight|positional_encoding|power|dwc\.weight)'
_TIMM_BLOCK = (_BLOCK + r'attn\.qkv\.weight', _BLOCK + r'mlp\.fc1\.weight',
               r'patch_embed\.proj\.weight', r'pos_embed')
HIERA_KEY = r'blocks\.\d+\.proj\.weight|pos_embed_win'
"""What Hiera's blocks or positions have and ViT's have not."""


def _guess(weights: Dict[str, Tensor]) -> dict:
    """Arch and attention of a ViT, from names and shapes."""
    stem = weights.get('patch_embed.projection.weight')
    blocks = {key.split('.')[1] for key in weights if key.startswith('blocks')}
    first = 'blocks.0.attn.'
    temp = weights.get(f'{first}temp.weight')
    power = weights.get(f'{first}power')  # (1, H, 1, d)
    norm = weights.get(f'{first}q_norm.weight')
    width = None if stem is None else stem.shape[0]
    heads = None
    if temp is not None:
        heads = temp.shape[0]
    elif power is not None:
        heads = power.shape[1]
    elif norm is not None and width:
        heads = width // norm.shape[0]
    return dict(
        embed_dims=width,
        depth=len(blocks),
        num_heads=heads,
        attention=guess_attention(weights, first))


def guess_attention(weights: Dict[str, Tensor],
                    prefix: str) -> Union[str, dict]:
    """Attention that weights under our names are of.

    Args:
        weights (dict[str, Tensor]): All weights.
        prefix (str): What stands before the names of one attention.

    Returns:
        str | dict: Its name or config.
    """
    if f'{prefix}qkvg.weight' in weights:
        return 'Pola'
    if f'{prefix}reduce.weight' not in weights:
        return 'Softmax'
    gains = weights[f'{prefix}ka.weight'].shape[0]
    width = weights[f'{prefix}proj.weight'].shape[0]
    bounded = f'{prefix}act.proj.weight' not in weights
    return dict(
        type='CSaN',
        variant='bounded' if bounded else 'unbounded',
        granularity='unit' if gains == width else 'head',
        posinfo=f'{prefix}posinfo.weight' in weights)


def _vit(name: str, has: tuple, rules: tuple, **kwargs) -> Format:
    kwargs = dict(
        dict(
            heads=_HEADS,
            roots=('patch_embed', 'blocks', 'layers'),
            stages=r'(?:blocks|layers)\.(\d+)\.',
            guess=_guess), **kwargs)
    return Format(name, 'VisionTransformer', has, rules, **kwargs)


def _both(name: str, has: tuple, rules: tuple, pooled: str, **kwargs
          ) -> Tuple[Format, Format]:
    """The format, and the same with a norm of the pooled token: such a
    classifier has none of its last block."""
    lacks, heads = kwargs.pop('lacks', ()), kwargs.pop('heads', _HEADS)
    return (_vit(name, has, rules, lacks=(*lacks, pooled), heads=heads,
                 **kwargs),
            _vit(f'{name}, average pooling', (*has, pooled), rules,
                 lacks=lacks, heads=(*heads, pooled),
                 new=(OUTPUT_NORMS, ), **kwargs))


FORMATS = (
    _vit(
        'mmcsan ViT',
        _OWN + (_CSAN_KEY, ),
        _OWN_RULES,
        new=(OUTPUT_NORMS, ),
        attention="attention='CSaN'"),
    _vit(
        'mmcsan ViT, Pola attention',
        _OWN + (_POLA_KEY, ),
        _OWN_RULES,
        new=(OUTPUT_NORMS, ),
        lacks=(_CSAN_KEY, ),
        attention="'Pola' in attention"),
    _vit(
        'mmcsan ViT, plain attention',
        _OWN,
        _OWN_RULES,
        new=(OUTPUT_NORMS, ),
        lacks=(_CSAN_KEY, _POLA_KEY),
        plain=True),
    *_both(
        'CSaN ViT',
        _TIMM_BLOCK + (_CSAN_KEY, ),
        _TIMM,
        _POOLED,
        lacks=(HIERA_KEY, ),
        attention="attention='CSaN'"),
    *_both(
        'plain ViT (timm, DeiT, MAE)',
        _TIMM_BLOCK,
        _TIMM,
        _POOLED,
        lacks=(HIERA_KEY, _CSAN_KEY),
        plain=True),
    *_both(
        'plain ViT (mmpretrain, mmseg)',
        (_LAYER + r'attn\.(qkv\.|attn\.in_proj_)weight',
         _LAYER + r'ffn\.layers\.1\.weight',
         r'patch_embed\.projection\.weight'),
        _MMPRETRAIN,
        r'(ln2|norm2)\.(weight|bias)',
        heads=_HEADS,
        plain=True),
)
"""Every format of ViT that is recognised."""
