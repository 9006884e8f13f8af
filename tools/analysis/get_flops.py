"""Count parameters and multiply-accumulates of a config's model.

A MAC is one multiplication and one addition: FLOPs are twice as many. What
papers call FLOPs of Swin, PVT, ... are the MACs of the first column; products
inside attentions (q k, weights times v) are in the second.

    python tools/analysis/get_flops.py CONFIG --shape 800 1333
"""
import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import _clone  # noqa: E402, F401

# isort: split
import torch  # noqa: E402
from mmengine.config import Config  # noqa: E402
from mmengine.registry import init_default_scope  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from mmcsan.registry import MODELS  # noqa: E402

SHAPES = dict(mmpretrain=(224, 224), mmseg=(512, 2048), mmdet=(1280, 800))
"""Height and width that papers count at, for each codebase."""


def parse_args(argv=None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument('config')
    parser.add_argument(
        '--shape', nargs='+', type=int,
        help='height and width of the image. Default: 224 224 for '
        'classifiers, 512 2048 for segmentors, 1280 800 for detectors')
    parser.add_argument('--json', action='store_true', help='print JSON')
    return parser.parse_args(argv)


def build(cfg):
    """The model of a config, without pretrained weights."""
    scope = cfg.get('default_scope', 'mmpretrain')
    init_default_scope(scope)
    with MODELS.switch_scope_and_registry(scope) as registry:
        model = registry.build(cfg.model)
    return model.eval(), scope


class Features(torch.nn.Module):
    """What runs for each image whatever is in it: no second stage.

    Args:
        model (nn.Module): A classifier, segmentor or detector.
    """

    def __init__(self, model) -> None:
        super().__init__()
        self.model = model

    def forward(self, images):
        """Images (B, 3, H, W) to what comes last."""
        model = self.model
        maps = model.extract_feat(images)
        for name in ('decode_head', 'rpn_head', 'bbox_head', 'head'):
            head = getattr(model, name, None)
            if head is not None:
                return head(maps)
        return maps


def count(model, shape) -> dict:
    """Parameters and MACs of a model.

    Args:
        model (nn.Module): A classifier, segmentor or detector.
        shape (tuple[int, int]): Height and width of the image.

    Returns:
        dict: ``parameters``, ``macs`` (linear layers and convolutions),
        ``attention_macs`` (products of attentions), and ``modules`` with the
        same for each direct child.
    """
    for module in model.modules():
        if hasattr(module, 'fused'):
            module.fused = False  # fused kernels do products twice
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        Features(model)(torch.zeros(1, 3, *shape))
    counts = counter.get_flop_counts()

    def split(flops):
        products = sum(n for op, n in flops.items() if 'bmm' in str(op))
        return dict(
            macs=(sum(flops.values()) - products) // 2,
            attention_macs=products // 2)

    def parameters(module):
        return sum(p.numel() for p in module.parameters())

    children = {
        name: dict(
            parameters=parameters(child),
            **split(counts.get(f'Features.model.{name}', {})))
        for name, child in model.named_children() if parameters(child)
    }
    return dict(
        parameters=parameters(model),
        **split(counts['Global']),
        modules=children)


def main() -> None:
    """Count and print."""
    args = parse_args()
    cfg = Config.fromfile(args.config)
    model, scope = build(cfg)
    shape = tuple(args.shape or SHAPES.get(scope, (224, 224)))
    shape = shape * 2 if len(shape) == 1 else shape
    if len(shape) != 2 or min(shape) < 1:
        raise SystemExit(f'error: --shape {args.shape} is not a height and a '
                         'width')
    result = count(model, shape)
    if args.json:
        print(json.dumps(dict(shape=shape, **result), indent=1))
        return
    print(f'{args.config}\nimage {shape[0]}x{shape[1]}; M parameters; '
          'G multiply-accumulates (FLOPs are twice as many)')
    print(f'{"":<24}{"parameters":>12}{"linear, conv":>14}'
          f'{"+ attention":>13}')
    rows = {**result['modules'], 'total': result}
    for name, row in rows.items():
        both = row['macs'] + row['attention_macs']
        print(f'{name:<24}{row["parameters"] / 1e6:>12.3f}'
              f'{row["macs"] / 1e9:>14.3f}{both / 1e9:>13.3f}')
    if hasattr(model, 'roi_head'):
        print('Heads of regions are not counted: their cost depends on the '
              'image.')
    if hasattr(model, 'auxiliary_head'):
        print('The auxiliary head takes part in training only.')


if __name__ == '__main__':
    main()
