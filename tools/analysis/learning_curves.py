"""Learning curves of one or several runs: losses and validation scores.

A run is its work dir; where it was stopped and resumed, the parts are joined,
and what a later part did anew counts. Several runs are drawn in one panel a
key. Prints the best and the last value of each, and writes a PNG.

    python tools/analysis/learning_curves.py work_dirs/A work_dirs/B
    python tools/analysis/learning_curves.py work_dirs/A --keys 'loss*' mIoU
"""
import argparse
import json
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Dict, List, NamedTuple

import _bench

NOT_CURVES = {'step', 'iter', 'epoch', 'time', 'data_time', 'memory'}
MAIN = ('mIoU', 'coco/bbox_mAP', 'coco/segm_mAP', 'accuracy/top1', 'accuracy')
"""Scores that are drawn unless others are asked for."""
LOWER = ('loss', 'error')
"""Parts of the names of what is better where it is lower."""

FEW = 50
"""Curves of fewer points are not smoothed: all would be their start."""


class Point(NamedTuple):
    """A value of a curve, and where on it."""

    x: int
    value: float


class Run(NamedTuple):
    """Curves by key: in iterations, or epochs for scores by epoch."""

    name: str
    train: Dict[str, List[Point]]
    val: Dict[str, List[Point]]
    by_epoch: bool


def parse_args():
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        'runs', nargs='+',
        help='work dirs, or single vis_data/scalars.json files')
    parser.add_argument(
        '--keys', nargs='+',
        help='what is drawn, such as loss mIoU; * stands for anything. '
        'Default: the loss and the main scores')
    parser.add_argument(
        '--names', nargs='+', help='of the runs. Default: of their folders')
    parser.add_argument(
        '--smooth', type=float, default=0.9,
        help='of losses: weight of what came before, 0 to less than 1; of '
        f'{FEW} points or more. Default: 0.9')
    parser.add_argument(
        '--out', default='learning_curves.png',
        help='PNG file. Default: learning_curves.png')
    return parser.parse_args()


def _fail(message: str) -> None:
    raise SystemExit(f'error: {message}')


def read(path: Path) -> List[dict]:
    """The entries of a scalars.json; a last line that was cut off is left.

    Args:
        path (Path): One JSON object a line.

    Returns:
        list[dict]: In their order.
    """
    entries = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError:
            print(f'{path}, line {number} is cut off and left out',
                  file=sys.stderr)
    return [e for e in entries if isinstance(e, dict)]


def parts(path: Path) -> List[List[dict]]:
    """The logs of a run in the order of their start; tests have no losses."""
    files = [path] if path.is_file() else sorted(
        path.glob('*/vis_data/scalars.json')) or sorted(
            path.glob('**/scalars.json'))
    if not files:
        _fail(f'there is no scalars.json in {path}; give the work dir of a '
              'training, whose visualizer has a LocalVisBackend')
    logs = [log for log in map(read, files)
            if any('iter' in e and 'lr' in e for e in log)]
    if not logs:
        _fail(f'nothing was trained in {path} yet, or its interval of logs '
              'is longer than the run')
    return logs


def join(name: str, logs: List[List[dict]]) -> Run:
    """The curves of a run whose parts went on from each other.

    Args:
        name (str): Of the run.
        logs (list[list[dict]]): Entries of each part, oldest first.

    Returns:
        Run: Of each part, what came before the next part began.
    """
    train, val, by_epoch = {}, {}, False
    for log in logs:
        steps = [e for e in log if 'iter' in e and 'lr' in e]
        first = steps[0]
        by_epoch = 'epoch' in first
        # What follows on this part's start was done anew.
        for curves, start in ((train, first['iter']),
                              (val, first['epoch' if by_epoch else 'iter'])):
            for key in curves:
                curves[key] = [p for p in curves[key] if p.x < start]
        for entry in log:
            curves = train if 'lr' in entry else val
            x = entry.get('iter', entry.get('step'))
            for key, value in entry.items():
                if key not in NOT_CURVES and isinstance(
                        value, (int, float)) and x is not None:
                    curves.setdefault(key, []).append(Point(x, value))
    return Run(name, train, val, by_epoch)


def choose(runs: List[Run], patterns) -> List[str]:
    """The keys to draw: those asked for, or the loss and the main scores."""
    there = dict.fromkeys(
        k for run in runs for curves in (run.train, run.val) for k in curves)
    if not patterns:
        scores = dict.fromkeys(k for run in runs for k in run.val)
        main = [k for k in scores if k in MAIN] or list(scores)
        return [k for k in ('loss', ) if k in there] + main
    for pattern in patterns:
        if not any(fnmatch(key, pattern) for key in there):
            _fail(f'no run has {pattern!r}. There are: {", ".join(there)}')
    return [k for k in there if any(fnmatch(k, p) for p in patterns)]


def smoothed(points: List[Point], weight: float) -> List[float]:
    """Exponential mean, without the pull towards 0 at the start."""
    mean, total, out = 0.0, 0.0, []
    for point in points:
        mean = weight * mean + (1 - weight) * point.value
        total = weight * total + (1 - weight)
        out.append(mean / total)
    return out


def best(key: str, points: List[Point]) -> Point:
    """The lowest loss, or the highest score."""
    choice = min if any(word in key for word in LOWER) else max
    return choice(points, key=lambda point: point.value)


def plot(runs: List[Run], keys: List[str], smooth: float, path: Path) -> None:
    """Draw a panel a key.

    Args:
        runs (list[Run]): A colour each.
        keys (list[str]): A panel each.
        smooth (float): Weight of what came before.
        path (Path): The PNG file.
    """
    import matplotlib
    matplotlib.use('Agg')
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator
    columns = 2 if len(keys) == 4 else min(len(keys), 3)
    rows = -(-len(keys) // columns)
    fig, axes = plt.subplots(
        rows, columns, squeeze=False, layout='constrained',
        figsize=(5 * columns, 3.6 * rows))
    for axis, key in zip(axes.flat, keys):
        units = set()
        for number, run in enumerate(runs):
            _draw(axis, run, key, f'C{number}', smooth, units)
        axis.set(title=key, xlabel=' / '.join(sorted(units)))
        axis.grid(alpha=.3)
        axis.xaxis.set_major_locator(MaxNLocator('auto', integer=True))
    for axis in axes.flat[len(keys):]:
        axis.axis('off')
    if len(runs) > 1:
        handles = [plt.Line2D([], [], color=f'C{i}', label=run.name)
                   for i, run in enumerate(runs)]
        fig.legend(handles=handles, loc='outside lower center', ncols=3)
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=110)
    plt.close(fig)


def _draw(axis, run: Run, key: str, colour: str, smooth: float,
          units: set) -> None:
    """One curve: values and their mean of a loss, values of a score."""
    if key in run.val:
        points = run.val[key]
        units.add('epoch' if run.by_epoch else 'iteration')
        axis.plot(*zip(*points), 'o-', color=colour, markersize=4)
        top = best(key, points)
        axis.annotate(f'{top.value:.4g}', top, (0, 5), ha='center',
                      textcoords='offset points', fontsize=8, color=colour)
        axis.margins(y=.12)
    elif key in run.train:
        points = run.train[key]
        units.add('iteration')
        axis.plot(*zip(*points), color=colour, alpha=.25)
        weight = smooth if 'loss' in key and len(points) >= FEW else 0
        axis.plot([p.x for p in points], smoothed(points, weight),
                  color=colour)


def table(runs: List[Run], keys: List[str]) -> str:
    """Best and last value of each curve."""
    rows = []
    for run in runs:
        for key in keys:
            points = run.val.get(key) or run.train.get(key)
            if points:
                unit = 'epoch' if key in run.val and run.by_epoch else 'iter'
                top, last = best(key, points), points[-1]
                rows.append((run.name, key, f'{top.value:.4g}',
                             f'{unit} {top.x:,}', f'{last.value:.4g}',
                             f'{unit} {last.x:,}'))
    return _bench.markdown(('run', 'key', 'best', 'at', 'last', 'at'), rows)


def main() -> None:
    """Read, join, print, draw."""
    args = parse_args()
    if not 0 <= args.smooth < 1:
        _fail(f'--smooth {args.smooth} is not from 0 to less than 1')
    if args.names and len(args.names) != len(args.runs):
        _fail(f'--names has {len(args.names)} names for {len(args.runs)} runs')
    names = args.names or [
        Path(r).resolve().name if Path(r).is_dir() else str(r)
        for r in args.runs]
    for path in args.runs:
        if not Path(path).exists():
            _fail(f'there is no {path}')
    runs = [join(n, parts(Path(r))) for n, r in zip(names, args.runs)]
    keys = choose(runs, args.keys)
    plot(runs, keys, args.smooth, Path(args.out))
    print(f'{table(runs, keys)}\n\nsaved {args.out}')


if __name__ == '__main__':
    main()
