"""Time and memory of attentions side by side, from small maps to large.

Arms take turns in one process; fused softmax attention is always one of them.
Memory is measured in a process of its own for each arm and size.

    python tools/analysis/benchmark_attention.py Pola CSaN --sizes 32 64 128
"""
import argparse
import json
import math
import sys

import _bench

# isort: split
import torch

from mmcsan.attentions import TokenLayout, build_attention

BASE = 'Softmax'


def parse_args(argv=None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        'attentions',
        nargs='+',
        help='name of an attention, or a dict(type=...) as in a config')
    parser.add_argument(
        '--sizes', nargs='+', default=['28', '56', '112'],
        help='height x width of the maps, in tokens')
    parser.add_argument('--dim', type=int, default=96)
    parser.add_argument('--heads', type=int, default=3)
    parser.add_argument('--batch', type=int, default=2)
    parser.add_argument(
        '--bias', action='store_true',
        help='with a relative-position bias, as in windows')
    parser.add_argument(
        '--transcriptions', action='store_true',
        help='add the equations step by step, from the tests of a clone')
    parser.add_argument('--no-memory', action='store_true')
    parser.add_argument('--measure', help=argparse.SUPPRESS)
    _bench.add_options(parser)
    return parser.parse_args(argv)


def transcription(name: str):
    """The class that computes an attention step by step, or None."""
    folder = _bench._clone.ROOT / 'tests' / 'test_attentions'
    if not (folder / 'transcriptions.py').exists():
        raise SystemExit('error: --transcriptions needs a clone: the tests '
                         'are not installed')
    sys.path.insert(0, str(folder))
    import transcriptions
    return getattr(transcriptions, f'Plain{name}', None)


def arms_of(args) -> dict:
    """Label of each arm, and how to build it: a config or a class."""
    arms = {BASE: BASE}
    for text in args.attentions:
        cfg = _bench.parse_cfg(text)
        arms[text] = cfg
        kind = cfg if isinstance(cfg, str) else cfg['type']
        if args.transcriptions and transcription(kind) and cfg == kind:
            arms[f'{text}, step by step'] = transcription(kind)
    return arms


def build(arm, args, size):
    """An attention on the device, and its inputs."""
    torch.manual_seed(0)
    kwargs = dict(dim=args.dim, num_heads=args.heads, grid_size=size)
    if isinstance(arm, type):
        if not args.bias and arm.__name__ == 'PlainCSaN':
            kwargs['grid_size'] = None
        module = arm(**kwargs)
    else:
        module = build_attention(arm, rel_pos_bias=args.bias, **kwargs)
    x = torch.randn(
        args.batch, size[0] * size[1], args.dim, device=args.device)
    return module.to(args.device), (x, TokenLayout(size))


def measure(args) -> None:
    """Memory of one arm at one size, in this process, as JSON."""
    label, size, train = json.loads(args.measure)
    module, inputs = build(arms_of(args)[label], args, tuple(size))
    small, few = build(arms_of(args)[label], args, (4, 4))
    dtype = _bench.DTYPES[args.dtype]
    _bench.step(small, few, train, dtype)()  # loads what libraries need
    run = _bench.step(module, inputs, train, dtype)
    print(json.dumps(_bench.peak_memory(run, args.device)))


def compare(args, size, train: bool) -> list:
    """A row for each arm."""
    steps = {}
    for label, arm in arms_of(args).items():
        module, inputs = build(arm, args, size)
        steps[label] = _bench.step(module, inputs, train,
                                   _bench.DTYPES[args.dtype])
    seconds = _bench.take_turns(steps, args.rounds)
    base = _bench.spread(seconds[BASE])[1]
    rows = []
    for label in steps:
        low, mid, high = _bench.spread(seconds[label])
        rows.append(
            dict(
                attention=label,
                mode='train' if train else 'infer',
                size=size,
                tokens=size[0] * size[1],
                ms=mid * 1e3,
                low=low * 1e3,
                high=high * 1e3,
                ratio=mid / base,
                mib=math.nan if args.no_memory else _bench.memory_elsewhere(
                    __file__, label, size, train)))
    return rows


def crossing(rows, label: str, mode: str):
    """Where the ratio to softmax falls below one, interpolated, or None."""
    points = sorted((r['tokens'], r['ratio']) for r in rows
                    if r['attention'] == label and r['mode'] == mode)
    for (n, a), (m, b) in zip(points, points[1:]):
        if a > 1 >= b:
            share = math.log(a) / (math.log(a) - math.log(b))
            return round(n * (m / n)**share)
    return None


def verdicts(rows) -> list:
    """From how many tokens on each arm is faster than softmax, in words."""
    out = []
    arms = sorted({(r['attention'], r['mode']) for r in rows})
    for label, mode in arms:
        if label == BASE:
            continue
        ratios = [r['ratio'] for r in rows
                  if (r['attention'], r['mode']) == (label, mode)]
        where = crossing(rows, label, mode)
        if where:
            text = f'is faster than {BASE} from about {where:,} tokens on'
        elif max(ratios) <= 1:
            text = f'is faster than {BASE} at every size measured'
        elif min(ratios) > 1:
            text = f'is slower than {BASE} at every size measured'
        else:
            text = f'crosses {BASE} more than once'
        out.append(f'{label}, {mode}: {text}')
    return out


def plot(rows, args, path: str) -> None:
    """Time per token, one panel a mode."""
    import matplotlib
    matplotlib.use('Agg')
    import matplotlib.pyplot as plt
    modes = sorted({r['mode'] for r in rows})
    fig, axes = plt.subplots(
        1, len(modes), figsize=(5.2 * len(modes), 4), squeeze=False)
    for axis, mode in zip(axes[0], modes):
        for label in dict.fromkeys(r['attention'] for r in rows):
            mine = sorted((r for r in rows
                           if (r['attention'], r['mode']) == (label, mode)),
                          key=lambda r: r['tokens'])
            tokens = [r['tokens'] for r in mine]
            axis.plot(
                tokens,
                [r['ms'] * 1e3 / r['tokens'] / args.batch for r in mine],
                'o-',
                label=label)
        axis.set(
            xscale='log', yscale='log', xlabel='tokens N', title=mode,
            ylabel='microseconds per token')
        ticks = sorted({r['tokens'] for r in rows})
        axis.set_xticks(ticks, [f'{n:,}' for n in ticks], rotation=30)
        axis.set_xticks([], minor=True)
        axis.grid(True, which='both', alpha=.3)
        axis.legend(fontsize=8)
    fig.suptitle(f'{args.dtype}, width {args.dim}, {args.heads} heads, '
                 f'batch {args.batch}')
    fig.tight_layout()
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
            last = rows[-1]
            print(f'{last["mode"]} at {size[0]}x{size[1]} done',
                  file=sys.stderr)
    table = _bench.markdown(
        ('attention', 'mode', 'map', 'tokens', 'ms (middle half)',
         f'x {BASE}', 'extra MiB'),
        [(r['attention'], r['mode'], '{}x{}'.format(*r['size']),
          f'{r["tokens"]:,}',
          f'{r["ms"]:.2f} ({r["low"]:.2f} - {r["high"]:.2f})',
          f'{r["ratio"]:.2f}', f'{r["mib"]:.0f}') for r in rows])
    text = '\n\n'.join([
        f'{_bench.machine(args.device)}; {args.dtype}, width {args.dim}, '
        f'{args.heads} heads, batch {args.batch}, {args.rounds} rounds',
        table, '\n'.join(verdicts(rows))
    ]) + '\n'
    print(text)
    report = _bench.save(args.out, 'attention.md', text)
    _bench.save(args.out, 'attention.json', json.dumps(rows, indent=1))
    plot(rows, args, str(report.with_suffix('.png')))
    print(f'saved {report} and .json, .png beside it')


if __name__ == '__main__':
    main()
