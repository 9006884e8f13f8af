"""Tell what a checkpoint is, and what a config would load of it."""
import argparse
import sys

import _clone  # noqa: F401

# isort: split
from mmengine.config import Config

from mmcsan.checkpoints import (CheckpointError, convert_checkpoint,
                                load_classification_checkpoint)
from mmcsan.registry import MODELS


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('checkpoint', help='file or URL')
    parser.add_argument(
        '--config', help='config whose backbone is to load it')
    parser.add_argument(
        '--ema', action='store_true', help='take the averaged weights')
    parser.add_argument(
        '--prefix', help="what stands before the network's keys, or the entry "
        'that holds it')
    parser.add_argument(
        '--partial',
        choices=['qkv'],
        help='what plain attention may fill in part; see init_cfg')
    return parser.parse_args()


def main() -> None:
    """Inspect."""
    args = parse_args()
    try:
        found = convert_checkpoint(args.checkpoint, args.ema, args.prefix)
        print(f'format:      {found.format.name}')
        print(f'backbone:    {found.format.family}')
        for name, value in found.guess_arch().items():
            print(f'{name + ":":<13}{value}')
        print(f'parameters:  {found.num_parameters:,} '
              f'in {len(found.weights)} tensors')
        for name in ('dropped', 'unexpected'):
            keys = getattr(found, name)
            if keys:
                more = ', ...' if len(keys) > 6 else ''
                print(f'{name + ":":<13}{", ".join(keys[:6])}{more} '
                      f'({len(keys)})')
        if args.config:
            backbone = dict(Config.fromfile(args.config).model.backbone)
            backbone.pop('init_cfg', None)
            report = load_classification_checkpoint(
                MODELS.build(backbone),
                args.checkpoint,
                prefix=args.prefix,
                ema=args.ema,
                partial=args.partial)
            print(f'\n{args.config} loads:\n{report}')
    except CheckpointError as e:
        sys.exit(f'error: {e}')


if __name__ == '__main__':
    main()
