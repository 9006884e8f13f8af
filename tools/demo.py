"""Train and fine-tune a small Swin on handwritten digits, and report.

A classifier is trained; a segmentor and an instance detector are fine-tuned
from its checkpoint, and trained from scratch beside it. Each step is a call
of tools/train.py with a config of configs/demo, which is printed.
"""
import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional

import _clone  # noqa: F401
from _training import DEMO_CONFIGS, ROOT, say, scores, train
from demo_report import draw_predictions, last_checkpoint, write_report

CLASSIFIER = 'swin-mini_1xb64_digits-cls'
SEGMENTOR = 'swin-mini_upernet_1xb8_digits'
DETECTOR = 'swin-mini_mask-rcnn_1xb8_digits'
"""Stems of configs, behind the name of the attention."""
TITLES = dict(csan='CSaN-Swin', pola='Pola-Swin')

FLOORS = {'top-1': 95., 'mIoU': 50., 'box AP50': 40.}
"""What the fine-tuned models must reach, in percent."""


@dataclass
class Run:
    """One training run.

    Args:
        name (str): Folder below the work dir.
        title (str): What it is, for people.
        config (str): Stem of its config, without the attention.
        starts (str | None): 'classifier' to fine-tune, 'scratch' for the
            same without a checkpoint, None for the classifier itself.
    """

    name: str
    title: str
    config: str
    starts: Optional[str] = None


RUNS = [
    Run('classifier', 'classifier', CLASSIFIER),
    Run('segmentor', 'segmentor, fine-tuned', SEGMENTOR, 'classifier'),
    Run('segmentor_scratch', 'segmentor, from scratch', SEGMENTOR, 'scratch'),
    Run('detector', 'detector, fine-tuned', DETECTOR, 'classifier'),
    Run('detector_scratch', 'detector, from scratch', DETECTOR, 'scratch'),
]

# Enough to see that every step works; far too little to learn.
QUICK_SPEC = dict(
    val_per_class=2, singles_per_digit=1, train_scenes=8, val_scenes=4)
QUICK = {
    CLASSIFIER: [
        'train_cfg.max_epochs=1', 'train_dataloader.dataset.indices=64',
        'default_hooks.checkpoint.interval=1'
    ],
    SEGMENTOR: [
        'train_cfg.max_iters=1', 'train_cfg.val_interval=1',
        'default_hooks.checkpoint.interval=1'
    ],
    DETECTOR: [
        'train_cfg.max_epochs=1', 'train_cfg.val_interval=1',
        'default_hooks.checkpoint.interval=1'
    ],
}


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--attention',
        choices=list(TITLES),
        default='csan',
        help='CSaN in all stages (default), or Pola in the first two stages '
        'and plain attention in the others')
    parser.add_argument(
        '--work-dir',
        type=Path,
        help='where checkpoints, logs, pictures and report.md go; '
        'work_dirs/demo by default, work_dirs/demo-pola for Pola')
    parser.add_argument(
        '--data-root',
        type=Path,
        default=ROOT / 'data' / 'digits',
        help='where the scenes are drawn')
    parser.add_argument(
        '--quick',
        action='store_true',
        help='one step of everything: shows that it works, learns nothing')
    return parser.parse_args()


def make_data(args: argparse.Namespace) -> None:
    """Draw the scenes, unless they are there."""
    from mmcsan.datasets import DigitsSpec, build_digits
    say(f'==> Drawing digits and scenes into {args.data_root}')
    build_digits(args.data_root, DigitsSpec(**(QUICK_SPEC if args.quick else
                                               {})))


def options(run: Run, args: argparse.Namespace) -> List[str]:
    """What ``--cfg-options`` of a run holds."""
    data = f'{args.data_root}/'
    found = [
        f'{split}_dataloader.dataset.data_root={data}'
        for split in ('train', 'val', 'test')
    ]
    if run.config == DETECTOR:
        found += [
            f'{split}_evaluator.ann_file={data}annotations/instances_val.json'
            for split in ('val', 'test')
        ]
    if run.starts == 'classifier':
        checkpoint = last_checkpoint(args.work_dir / 'classifier')
        found.append(f'model.backbone.init_cfg.checkpoint={checkpoint}')
    elif run.starts == 'scratch':
        # As the classifier began.
        found += [
            f'model.backbone.init_cfg.{key}={value}' for key, value in dict(
                _delete_=True,
                type='Xavier',
                layer='Linear',
                distribution='uniform').items()
        ]
    return found + (QUICK[run.config] if args.quick else [])


def main() -> None:
    """Run the demo."""
    args = parse_args()
    if args.work_dir is None:
        # Where the configs of segmentor and detector look by default.
        name = 'demo' if args.attention == 'csan' else f'demo-{args.attention}'
        args.work_dir = ROOT / 'work_dirs' / name
    args.work_dir = args.work_dir.absolute()
    args.data_root = args.data_root.absolute()
    args.work_dir.mkdir(parents=True, exist_ok=True)
    start = time.time()
    make_data(args)
    results, seconds = {}, {}
    for number, run in enumerate(RUNS, 1):
        config = DEMO_CONFIGS / f'{args.attention}-{run.config}.py'
        folder = args.work_dir / run.name
        seconds[run.name] = train(f'{number}/{len(RUNS)} {run.title}', config,
                                  folder, options(run, args))
        results[run.name] = scores(folder)
    say('\n==> Drawing pictures')
    picture = draw_predictions(args.work_dir, args.data_root)
    report, failures = write_report(
        args.work_dir, TITLES[args.attention], results, seconds, picture,
        time.time() - start, {} if args.quick else FLOORS)
    say(f'\n{report}\nWritten to {args.work_dir / "report.md"}')
    if failures:
        raise SystemExit('error: below the floor: ' + ', '.join(failures))


if __name__ == '__main__':
    main()
