"""Train stacks of attention alone on handwritten digits, and compare.

What an FFN does for plain attention, CSaN is to do by itself. A classifier of
plain attention with FFNs, one in which each FFN gave way to another plain
attention, and one of CSaN alone are trained on the demo's single digits, each
with several seeds. The report says what came out, with its spread.
"""
import argparse
import json
import statistics
from pathlib import Path
from typing import Dict, List

import _clone  # noqa: F401
from _training import DEMO_CONFIGS, ROOT, say, scores, train

ARMS = {
    'softmax-swin-mini': 'plain attention with FFNs',
    'softmax-swin-mini-pure': 'plain attention alone',
    'csan-swin-mini-pure': 'CSaN alone',
}
"""Configs of single digits, and what they are."""


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--seeds', type=int, nargs='+', default=[0, 1, 2], help='of each arm')
    parser.add_argument(
        '--epochs', type=int, default=5, help='of each run (default: 5)')
    parser.add_argument(
        '--work-dir',
        type=Path,
        default=ROOT / 'work_dirs' / 'pure_attention',
        help='where logs and report.md go')
    parser.add_argument(
        '--data-root',
        type=Path,
        default=ROOT / 'data' / 'digits',
        help='where the digits are drawn')
    parser.add_argument(
        '--images',
        type=int,
        default=0,
        help='training images, for a quick look (default: all)')
    return parser.parse_args()


def options(args: argparse.Namespace, seed: int) -> List[str]:
    """What ``--cfg-options`` of a run holds."""
    epochs = args.epochs
    found = [
        f'train_cfg.max_epochs={epochs}', f'train_cfg.val_interval={epochs}',
        f'param_scheduler.1.end={epochs}', f'randomness.seed={seed}',
        'default_hooks.checkpoint.interval=-1'
    ]
    if args.images:
        found.append(f'train_dataloader.dataset.indices={args.images}')
    return found + [
        f'{split}_dataloader.dataset.data_root={args.data_root}/'
        for split in ('train', 'val', 'test')
    ]


def count_parameters(config: Path) -> int:
    """Parameters of the model of a config."""
    from mmengine.config import Config
    from mmpretrain.registry import MODELS

    import mmcsan  # noqa: F401
    with MODELS.switch_scope_and_registry('mmpretrain') as registry:
        model = registry.build(Config.fromfile(config).model)
    return sum(p.numel() for p in model.parameters())


def write_report(path: Path, results: Dict[str, Dict[int, float]],
                 sizes: Dict[str, int], epochs: int) -> str:
    """Write ``report.md``.

    Args:
        path (Path): Where to.
        results (dict): Top-1 of each arm, in percent, by seed.
        sizes (dict): Parameters of each arm.
        epochs (int): Of each run.

    Returns:
        str: The report.
    """
    lines = [
        '# Stacks of attention alone', '',
        '| blocks | parameters (k) | top-1 (%) of each seed | mean | '
        'standard deviation |', '|---|---|---|---|---|'
    ]
    means = {}
    for arm, title in ARMS.items():
        values = list(results[arm].values())
        means[arm] = statistics.mean(values)
        spread = f'{statistics.stdev(values):.2f}' if values[1:] else ''
        lines.append(f'| {title} | {sizes[arm] / 1e3:.0f} | '
                     f'{", ".join(f"{v:.1f}" for v in values)} | '
                     f'{means[arm]:.2f} | {spread} |')
    lines += [
        '', f'{epochs} epochs each. {verdict(means)} Ten digits and a network '
        'of five blocks say no more than that.'
    ]
    report = '\n'.join(lines) + '\n'
    path.write_text(report)
    return report


def verdict(means: Dict[str, float]) -> str:
    """What the means say of the gap that CSaN is to close.

    Args:
        means (dict): Mean top-1 of each arm.

    Returns:
        str: A sentence.
    """
    full, plain, csan = (means[arm] for arm in ARMS)
    if plain >= full:
        return ('Plain attention alone is no worse here than with FFNs: there '
                'is no gap to close.')
    part = (csan - plain) / (full - plain)
    return (f'Without FFNs plain attention loses {full - plain:.1f} points; '
            f'CSaN {"makes good" if part > 0 else "adds to it, by"} '
            f'{abs(part):.0%} of that.')


def main() -> None:
    """Run the comparison."""
    from mmcsan.datasets import build_digits
    args = parse_args()
    args.work_dir = args.work_dir.absolute()
    args.data_root = args.data_root.absolute()
    say(f'==> Drawing digits into {args.data_root}')
    build_digits(args.data_root)
    results, sizes = {arm: {} for arm in ARMS}, {}
    for seed in args.seeds:
        for arm, title in ARMS.items():
            config = DEMO_CONFIGS / f'{arm}_1xb64_digits-cls.py'
            sizes[arm] = count_parameters(config)
            folder = args.work_dir / f'{arm}_seed{seed}'
            train(f'{title}, seed {seed}', config, folder,
                  options(args, seed))
            results[arm][seed] = scores(folder)['top-1']
    (args.work_dir / 'scores.json').write_text(json.dumps(results, indent=2))
    report = write_report(args.work_dir / 'report.md', results, sizes,
                          args.epochs)
    say(f'\n{report}\nWritten to {args.work_dir / "report.md"}')


if __name__ == '__main__':
    main()
