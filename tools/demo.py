"""Train and fine-tune a small CSaN-Swin on handwritten digits, and report.

A classifier is trained; a segmentor and an instance detector are fine-tuned
from its checkpoint, and trained from scratch beside it. Each step is a call
of tools/train.py with a config of configs/demo, which is printed.
"""
import argparse
import json
import re
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional

import _clone  # noqa: F401
from demo_report import draw_predictions, last_checkpoint, write_report

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / 'configs' / 'demo'
CLASSIFIER = 'csan-swin-mini_1xb64_digits-cls'
SEGMENTOR = 'csan-swin-mini_upernet_1xb8_digits'
DETECTOR = 'csan-swin-mini_mask-rcnn_1xb8_digits'

PROGRESS = re.compile(r'INFO - ((?:Epoch|Iter)\((?:train|val)\).*)')
STRIP = re.compile(r'\s*(base_lr|lr|grad_norm|data_time|time|memory): '
                   r'[\d.e+-]+')
METRICS = {
    'accuracy/top1': 'top-1',
    'mIoU': 'mIoU',
    'coco/bbox_mAP': 'box AP',
    'coco/bbox_mAP_50': 'box AP50',
    'coco/segm_mAP': 'mask AP',
}
FLOORS = {'top-1': 95., 'mIoU': 50., 'box AP50': 40.}
"""What the fine-tuned models must reach, in percent."""


@dataclass
class Run:
    """One training run.

    Args:
        name (str): Folder below the work dir.
        title (str): What it is, for people.
        config (str): Stem of its config.
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
        '--work-dir',
        type=Path,
        default=ROOT / 'work_dirs' / 'demo',
        help='where checkpoints, logs, pictures and report.md go')
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


def say(text: str) -> None:
    """Print at once, also into a pipe."""
    print(text, flush=True)


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


def train(run: Run, number: int, args: argparse.Namespace) -> float:
    """Train one model and show how it goes.

    Args:
        run (Run): What to train.
        number (int): Of how many it is the what-th, from 1.
        args (argparse.Namespace): The command line.

    Returns:
        float: Seconds it took.

    Raises:
        SystemExit: If training fails; shows the end of its log.
    """
    config = CONFIGS / f'{run.config}.py'
    folder = args.work_dir / run.name
    command = [
        sys.executable,
        str(ROOT / 'tools' / 'train.py'),
        str(config), '--work-dir',
        str(folder), '--cfg-options', *options(run, args)
    ]
    say(f'\n==> {number}/{len(RUNS)} {run.title}\n    '
        f'python tools/train.py configs/demo/{config.name} '
        f'--work-dir {folder}')
    folder.mkdir(parents=True, exist_ok=True)
    start, tail = time.time(), deque(maxlen=30)
    with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True) as process, open(folder / 'output.txt', 'w') as log:
        for line in process.stdout:
            log.write(line)
            tail.append(line)
            match = PROGRESS.search(line)
            if match:
                brief = ' '.join(STRIP.sub('', match[1]).split())
                say(f'    {time.time() - start:5.0f} s  {brief}')
    if process.returncode:
        raise SystemExit(f'{"".join(tail)}\nerror: {run.title} failed; its '
                         f'output is in {folder / "output.txt"}')
    return time.time() - start


def scores(folder: Path) -> Dict[str, float]:
    """The scores of the last validation of a run, in percent."""
    newest = max(folder.glob('*/vis_data/scalars.json'))
    found = {}
    for line in newest.read_text().splitlines():
        entry = json.loads(line)
        for key, name in METRICS.items():
            if key in entry:
                # COCO's scores are parts of one.
                factor = 100 if key.startswith('coco') else 1
                found[name] = entry[key] * factor
    return found


def main() -> None:
    """Run the demo."""
    args = parse_args()
    args.work_dir = args.work_dir.absolute()
    args.data_root = args.data_root.absolute()
    args.work_dir.mkdir(parents=True, exist_ok=True)
    start = time.time()
    make_data(args)
    results, seconds = {}, {}
    for number, run in enumerate(RUNS, 1):
        seconds[run.name] = train(run, number, args)
        results[run.name] = scores(args.work_dir / run.name)
        say('    ' + ', '.join(f'{name} {value:.1f}' for name, value in
                               results[run.name].items()))
    say('\n==> Drawing pictures')
    picture = draw_predictions(args.work_dir, args.data_root)
    report, failures = write_report(
        args.work_dir, results, seconds, picture, time.time() - start,
        {} if args.quick else FLOORS)
    say(f'\n{report}\nWritten to {args.work_dir / "report.md"}')
    if failures:
        raise SystemExit('error: below the floor: ' + ', '.join(failures))


if __name__ == '__main__':
    main()
