"""Training runs that a tool starts, shows and reads the scores of."""
import json
import re
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Dict, List

ROOT = Path(__file__).resolve().parents[1]
DEMO_CONFIGS = ROOT / 'configs' / 'demo'

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
"""Scores in logs, and their names for people."""


def say(text: str) -> None:
    """Print at once, also into a pipe."""
    print(text, flush=True)


def train(title: str, config: Path, folder: Path,
          options: List[str]) -> float:
    """Train one model and show how it goes.

    Args:
        title (str): What it is, for people.
        config (Path): Its config, in this clone.
        folder (Path): Its work dir.
        options (list[str]): What ``--cfg-options`` is to hold.

    Returns:
        float: Seconds it took.

    Raises:
        SystemExit: If training fails; shows the end of its log.
    """
    command = [
        sys.executable,
        str(ROOT / 'tools' / 'train.py'),
        str(config), '--work-dir',
        str(folder), '--cfg-options', *options
    ]
    say(f'\n==> {title}\n    '
        f'python tools/train.py {config.relative_to(ROOT)} '
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
        raise SystemExit(f'{"".join(tail)}\nerror: {title} failed; its '
                         f'output is in {folder / "output.txt"}')
    return time.time() - start


def scores(folder: Path) -> Dict[str, float]:
    """The scores of the last validation of a run, shown and returned.

    Args:
        folder (Path): Its work dir.

    Returns:
        dict: By name, in percent.
    """
    newest = max(folder.glob('*/vis_data/scalars.json'))
    found = {}
    for line in newest.read_text().splitlines():
        entry = json.loads(line)
        for key, name in METRICS.items():
            if key in entry:
                # COCO's scores are parts of one.
                factor = 100 if key.startswith('coco') else 1
                found[name] = entry[key] * factor
    say('    ' + ', '.join(f'{n} {value:.1f}' for n, value in found.items()))
    return found
