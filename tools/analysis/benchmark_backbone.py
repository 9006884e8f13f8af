"""Time and memory of backbones side by side, at several image sizes.

Arms take turns in one process; the first is what the others are measured in.

    python tools/analysis/benchmark_backbone.py \\
        "dict(type='mmpretrain.SwinTransformer', arch='tiny')" \\
        "dict(type='mmcsan.SwinTransformer', arch='swin-tiny')" --sizes 224 512
"""
import argparse
import json
import math
import sys

import _bench

# isort: split
import torch
from mmengine.config import Config

from mmcsan.registry import MODELS


def parse_args(argv=None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        'backbones', nargs='+',
        help='configs whose backbone to take, or dict(type=...)')
    parser.add_argument(
        '--sizes', nargs='+', default=['224'],
        help='height x width of the images')
    parser.add_argument('--batch', type=int, default=1)
    parser.add_argument(
        '--compile', action='store_true', help='with torch.compile')
    parser.add_argument('--no-memory', action='store_true')
    parser.add_argument('--measure', help=argparse.SUPPRESS)
    _bench.add_options(parser)
    return parser.parse_args(argv)


def backbone_cfg(text: str) -> dict:
    """The backbone of a config file, or a dict as it stands."""
    cfg = Config.fromfile(text).model.backbone.to_dict() if text.endswith(
        '.py') else _bench.parse_cfg(text)
    if not isinstance(cfg, dict):
        raise SystemExit(f'error: {text!r} is neither a config file nor '
                         "dict(type='mmcsan.SwinTransformer', ...)")
    cfg.pop('init_cfg', None)
    return cfg


def build(text: str, args, size, train: bool):
    """A backbone on the device, and its images."""
    torch.manual_seed(0)
    module = MODELS.build(backbone_cfg(text)).to(args.device)
    module.train(train)
    images = torch.randn(args.batch, 3, *size, device=args.device)
    return (torch.compile(module) if args.compile else module), (images, )


def measure(args) -> None:
    """Memory of one arm at one size, in this process, as JSON."""
    text, size, train = json.loads(args.measure)
    module, inputs = build(text, args, size, train)
    dtype = _bench.DTYPES[args.dtype]
    small = inputs[0][..., :224, :224].contiguous()
    _bench.step(module, (small, ), train, dtype)()  # loads libraries
    module.zero_grad(set_to_none=True)
    run = _bench.step(module, inputs, train, dtype)
    print(json.dumps(_bench.peak_memory(run, args.device)))


def compare(args, size, train: bool) -> list:
    """A row for each arm."""
    steps = {}
    for text in args.backbones:
        module, inputs = build(text, args, size, train)
        steps[text] = _bench.step(module, inputs, train,
                                  _bench.DTYPES[args.dtype])
    seconds = _bench.take_turns(steps, args.rounds)
    base = _bench.spread(seconds[args.backbones[0]])[1]
    rows = []
    for text in steps:
        low, mid, high = _bench.spread(seconds[text])
        rows.append(
            dict(
                backbone=text,
                mode='train' if train else 'infer',
                size=size,
                ms=mid * 1e3,
                low=low * 1e3,
                high=high * 1e3,
                ratio=mid / base,
                mib=math.nan if args.no_memory else _bench.memory_elsewhere(
                    __file__, text, size, train)))
    return rows


def plot(rows, path: str) -> None:
    """Time in terms of the first arm, one panel a mode."""
    import matplotlib
    matplotlib.use('Agg')
    import matplotlib.pyplot as plt
    modes = sorted({r['mode'] for r in rows})
    fig, axes = plt.subplots(
        1, len(modes), figsize=(5.6 * len(modes), 4.4), squeeze=False)
    labels = list(dict.fromkeys(r['backbone'] for r in rows))
    sizes = list(dict.fromkeys(tuple(r['size']) for r in rows))
    width = .8 / len(labels)
    for axis, mode in zip(axes[0], modes):
        for index, label in enumerate(labels):
            ratios = [r['ratio'] for r in rows
                      if (r['backbone'], r['mode']) == (label, mode)]
            axis.bar([i + index * width for i in range(len(sizes))], ratios,
                     width, label=chr(ord('A') + index))
        axis.set_xticks([i + .4 - width / 2 for i in range(len(sizes))],
                        ['{}x{}'.format(*s) for s in sizes])
        axis.set(title=mode, ylabel='time, in terms of A')
        axis.legend()
    names = '\n'.join(f'{chr(ord("A") + i)}: {label}'
                      for i, label in enumerate(labels))
    fig.text(.02, .02, names, fontsize=7, va='bottom')
    fig.tight_layout(rect=(0, .05 + .035 * len(labels), 1, 1))
    fig.savefig(path, dpi=110)


def main() -> None:
    """Measure, print, save."""
    args = parse_args()
    _bench.check(args)
    if args.measure:
        measure(args)
        return
    rows = []
    for size in _bench.parse_sizes(args.sizes):
        for train in _bench.modes(args):
            rows += compare(args, size, train)
            print(f'{rows[-1]["mode"]} at {size[0]}x{size[1]} done',
                  file=sys.stderr)
    table = _bench.markdown(
        ('backbone', 'mode', 'image', 'ms (middle half)', 'x first',
         'extra MiB'),
        [(r['backbone'], r['mode'], '{}x{}'.format(*r['size']),
          f'{r["ms"]:.1f} ({r["low"]:.1f} - {r["high"]:.1f})',
          f'{r["ratio"]:.2f}', f'{r["mib"]:.0f}') for r in rows])
    text = (f'{_bench.machine(args.device)}; {args.dtype}, batch '
            f'{args.batch}, {args.rounds} rounds'
            f'{", compiled" if args.compile else ""}\n\n{table}\n')
    print(text)
    report = _bench.save(args.out, 'backbone.md', text)
    _bench.save(args.out, 'backbone.json', json.dumps(rows, indent=1))
    plot(rows, str(report.with_suffix('.png')))
    print(f'saved {report} and .json, .png beside it')


if __name__ == '__main__':
    main()
