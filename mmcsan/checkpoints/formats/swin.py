"""Swin: this project's, CSaN's, PolaFormer's, and those of plain Swin."""
from typing import Dict, Union

from torch import Tensor

from .base import Format, Rule, unfold_to_slices

_BLOCK = r'layers\.(\d+)\.blocks\.(\d+)\.'
_HEADS = (r'(head|fc)\..*', )
_DERIVED = (r'.*\.attn_mask', r'.*relative_position_index',
            r'.*relative_coords_table')
_DOWN = r'downsample\.(norm\.weight|norm\.bias|reduction\.weight)'

_RULES = (
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

_TABLE = _BLOCK + r'attn\.relative_position_bias_table'
_CSAN_KEY = r'.*\.attn\.(u|reduce|act\.proj|ka|kv|magk|temp)\..*'
_POLA_KEY = r'.*\.attn\.(qkvg\.weight|positional_encoding|power|dwc\.weight)'
_PVT_KEY = r'patch_embed\.pos_embed'
_POLAPP_KEY = r'.*\.attn\.lepe\.weight'
_QKV = r'(qkv|qkvg)\.weight'
_OWN = (rf'stages\.\d+\.blocks\.\d+\.attn\.{_QKV}',
        # In a stack of pure attention a second attention is the FFN.
        r'stages\.\d+\.blocks\.\d+\.ffn\.(?:layers\.1|proj)\.weight',
        r'patch_embed\.norm\..*|stages\.\d\.downsample\.reduction\.weight')
_OWN_RULES = (Rule(r'((?:patch_embed|stages|norm\d)\..*)', r'\1'), )
_FIRST_MERGE = r'layers\.0\.downsample\..*'


def _guess(weights: Dict[str, Tensor]) -> dict:
    """Arch and attention of a Swin, from names and shapes."""
    depths, heads, attentions = [], [], []
    stages = FORMATS[0].count_stages(weights)
    for stage in range(stages):
        prefix = f'stages.{stage}.blocks.'
        depths.append(
            len({key.split('.')[3] for key in weights
                 if key.startswith(prefix)}))
        table = weights.get(f'{prefix}0.attn.relative_position_bias_table')
        power = weights.get(f'{prefix}0.attn.power')  # (1, H, 1, d)
        heads.append(table.shape[1] if table is not None else
                     power.shape[1] if power is not None else None)
        attentions.append(_guess_attention(weights, f'{prefix}0.attn.'))
    stem = weights.get('patch_embed.projection.weight')
    alike = all(a == attentions[0] for a in attentions[1:])
    pure = 'stages.0.blocks.0.ffn.proj.weight' in weights
    return dict(
        **(dict(ffn='attention') if pure else {}),
        embed_dims=None if stem is None else stem.shape[0],
        depths=depths,
        num_heads=heads,
        attention=attentions[0] if alike and attentions else attentions)


def _guess_attention(weights: Dict[str, Tensor],
                     prefix: str) -> Union[str, dict]:
    if f'{prefix}qkvg.weight' in weights:
        return 'Pola'
    if f'{prefix}reduce.weight' not in weights:
        return 'Softmax'
    gains = weights[f'{prefix}ka.weight'].shape[0]
    dim = weights[f'{prefix}qkv.weight'].shape[1]
    bounded = f'{prefix}act.proj.weight' not in weights
    return dict(
        type='CSaN',
        variant='bounded' if bounded else 'unbounded',
        granularity='unit' if gains == dim else 'head',
        posinfo=f'{prefix}posinfo.weight' in weights)


def _swin(name: str, has: tuple, rules: tuple, **kwargs) -> Format:
    kwargs = dict(
        dict(heads=_HEADS, derived=_DERIVED, guess=_guess), **kwargs)
    return Format(name, 'SwinTransformer', has, rules, **kwargs)


FORMATS = (
    _swin(
        'mmcsan Swin',
        _OWN + (_CSAN_KEY, ),
        _OWN_RULES,
        lacks=(_PVT_KEY, ),
        attention="attention='CSaN'"),
    _swin(
        'mmcsan Swin, Pola attention',
        _OWN + (_POLA_KEY, ),
        _OWN_RULES,
        lacks=(_CSAN_KEY, _PVT_KEY),
        attention="'Pola' in attention"),
    _swin(
        'mmcsan Swin, plain attention',
        _OWN,
        _OWN_RULES,
        lacks=(_CSAN_KEY, _POLA_KEY, _PVT_KEY),
        plain=True),
    _swin(
        'CSaN Swin', (_TABLE, _CSAN_KEY),
        _RULES + (_MERGE_FIRST, ),
        lacks=(_FIRST_MERGE, ),
        attention="attention='CSaN'"),
    _swin(
        'PolaFormer Swin', (_POLA_KEY, _BLOCK + r'attn\.qkvg\.weight'),
        _RULES + (_MERGE_LAST, ),
        lacks=(_CSAN_KEY, _POLAPP_KEY),
        attention="attention=['Pola', 'Pola', 'Softmax', 'Softmax']"),
    _swin(
        'plain Swin (original or old timm)', (_TABLE, _FIRST_MERGE),
        _RULES + (_MERGE_LAST, ),
        lacks=(_CSAN_KEY, _POLA_KEY),
        plain=True),
    _swin(
        'plain Swin (timm)', (_TABLE, ),
        _RULES + (_MERGE_FIRST, ),
        lacks=(_CSAN_KEY, _POLA_KEY, _FIRST_MERGE),
        plain=True),
    _swin(
        'plain Swin (mmpretrain, mmdet, mmseg)',
        (r'stages\.\d+\.blocks\.\d+\.attn\.w_msa\.qkv\.weight', ), (
            Rule(r'(stages\.\d+\.blocks\.\d+\.attn)\.w_msa\.(.*)', r'\1.\2'),
            Rule(r'stages\.(?P<stage>\d+)\.' + _DOWN,
                 r'stages.{next}.downsample.\2', unfold_to_slices),
            Rule(r'((?:patch_embed|stages|norm\d)\..*)', r'\1'),
        ),
        plain=True),
)
"""Every format of Swin that is recognised."""
