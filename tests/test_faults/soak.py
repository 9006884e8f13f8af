"""By hand, what the tests do for some seconds: for longer, or at full size.

Kill a run at random moments, or run the start of the demo twice.
"""
import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch
from faulty_runs import ROOT, finish, kill_at_random, make

CONFIGS = ('1xb64_digits-cls', 'upernet_1xb8_digits', 'mask-rcnn_1xb8_digits')


def kills(folder, args):
    """Kill runs, and tell at which iteration each would go on."""
    config, work = make(folder), folder / 'work'
    saved = kill_at_random(config, work, args.times, args.seed)
    print(f'{args.times} kills; iterations of the newest checkpoint at each, '
          f'and how often: {sorted(Counter(saved).items())}')
    code = finish(config, work, True)
    print(f'resumed for the last time: exit code {code}')


def options(config, data, iterations):
    """What makes a config of the demo end early, and save."""
    found = [
        f'{split}_dataloader.dataset.data_root={data}/'
        for split in ('train', 'val', 'test')
    ] + [
        'train_cfg._delete_=True', 'train_cfg.type=IterBasedTrainLoop',
        f'train_cfg.max_iters={iterations}', 'train_cfg.val_interval=100000',
        'default_hooks.checkpoint.by_epoch=False',
        f'default_hooks.checkpoint.interval={iterations}',
        'randomness.deterministic=True'
    ]
    if config == CONFIGS[0]:
        return found
    if config == CONFIGS[2]:
        found.append(
            f'val_evaluator.ann_file={data}/annotations/instances_val.json')
    return found + [
        'model.backbone.init_cfg._delete_=True',
        'model.backbone.init_cfg.type=Xavier',
        'model.backbone.init_cfg.layer=Linear'
    ]


def determinism(folder, args):
    """Train the first iterations of the demo twice, and compare."""
    from mmcsan.datasets import DigitsSpec, build_digits
    data = folder / 'digits'
    build_digits(data, DigitsSpec())
    for config in CONFIGS:
        weights = []
        for number in range(2):
            work = folder / f'{config}_{number}'
            subprocess.run([
                sys.executable, ROOT / 'tools' / 'train.py',
                ROOT / f'configs/demo/csan-swin-mini_{config}.py',
                '--work-dir', work, '--cfg-options',
                *options(config, data, args.times)
            ], check=True, stdout=subprocess.DEVNULL)
            [path] = work.glob('iter_*.pth')
            weights.append(torch.load(path, weights_only=False)['state_dict'])
        one, two = weights
        differ = [k for k in one if not torch.equal(one[k], two[k])]
        print(f'{config}: {args.times} iterations twice, {len(differ)} of '
              f'{len(one)} tensors differ', flush=True)


def main():
    """Read the command line and start."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('what', choices=['kills', 'determinism'])
    parser.add_argument(
        '--times', type=int, default=20, help='kills, or iterations')
    parser.add_argument('--seed', type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        globals()[args.what](Path(folder), args)


if __name__ == '__main__':
    main()
