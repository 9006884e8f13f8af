"""PolaFormer++: this project's, released classifiers and dense backbones."""
import re
from typing import Dict

from torch import Tensor

from .base import OUTPUT_NORMS, Format, Rule

_BLOCK = r'layers\.(\d+)\.blocks\.(\d+)\.'
_HERE = r'stages.\1.blocks.\2.'
_DOWN = r'layers\.(?P<stage>\d+)\.downsample\.'


def _stem(match: re.Match, weights: Dict[str, Tensor]) -> str:
    """A place in the stem: there, convolution, norm and activation in turn."""
    layer, kind = divmod(int(match[1]), 3)
    return f'patch_embed.{layer}.{("conv", "norm")[kind]}.{match[2]}'


_RULES = (
    Rule(r'patch_embed\.proj\.(\d+)\.(.*)', _stem),
    Rule(_DOWN + r'reduction\.(.*)', r'stages.{next}.downsample.conv.\2'),
    Rule(_DOWN + r'norm\.(.*)', r'stages.{next}.downsample.norm.\2'),
    # (1, C, 1, 1) there
    Rule(_BLOCK + r'(gamma_[12])', _HERE + r'\3', Tensor.flatten),
    Rule(_BLOCK + r'(norm[12])\.norm\.(.*)', _HERE + r'\3.\4'),
    Rule(_BLOCK + r'((?:pos|attn|ffn)\..*)', _HERE + r'\3'),
    Rule(r'extra_norms\.(\d)\.norm\.(.*)', r'norm\1.\2'),
)
_COUNTERS = r'.*\.num_batches_tracked'
_STEM = r'patch_embed\.proj\.0\.weight'
_LEPE = r'layers\.\d+\.blocks\.\d+\.attn\.lepe\.weight'
_EXTRA = r'extra_norms\..*'


def _guess(weights: Dict[str, Tensor]) -> dict:
    """Arch and attention of a PolaFormer++, from names and shapes."""
    arch = dict(embed_dims=[], depths=[], num_heads=[], layer_scale=[])
    attentions, ratios = [], []
    for stage in range(FORMATS[0].count_stages(weights)):
        prefix = f'stages.{stage}.blocks.'
        hidden, dim = weights[f'{prefix}0.ffn.fc1.weight'].shape
        s1 = weights.get(f'{prefix}0.attn.s1')  # (1, H, 1, 2d)
        arch['embed_dims'].append(dim)
        arch['depths'].append(
            len({key.split('.')[3] for key in weights
                 if key.startswith(prefix)}))
        arch['num_heads'].append(None if s1 is None else s1.shape[1])
        arch['layer_scale'].append(
            1 if f'{prefix}0.gamma_1' in weights else None)
        ratios.append(hidden / dim)
        attentions.append('PolaPPSoftmax' if s1 is None else 'PolaPP')
    return dict(**arch, mlp_ratio=ratios, attention=attentions)


def _polapp(name: str, has: tuple, rules: tuple, **kwargs) -> Format:
    return Format(
        name,
        'PolaFormerPP',
        has,
        rules,
        # "proj" and "norm" stand between the last stage and the classifier.
        heads=(r'(head|proj|norm)\..*', ),
        derived=(r'.*RoPE(_linear)?\.angle', ),
        guess=_guess,
        **kwargs)


FORMATS = (
    _polapp(
        'mmcsan PolaFormer++',
        (r'patch_embed\.0\.conv\.weight',
         r'stages\.\d+\.blocks\.\d+\.ffn\.dwconv\.weight'),
        (Rule(r'((?:patch_embed|stages|norm\d)\..*)', r'\1'), ),
        new=(_COUNTERS, OUTPUT_NORMS)),
    _polapp(
        'PolaFormer++ classifier', (_STEM, _LEPE),
        _RULES,
        lacks=(_EXTRA, ),
        new=(_COUNTERS, OUTPUT_NORMS)),
    _polapp(
        'PolaFormer++ dense backbone', (_STEM, _LEPE, _EXTRA),
        _RULES,
        new=(_COUNTERS, )),
)
"""Every format of PolaFormer++ that is recognised."""
