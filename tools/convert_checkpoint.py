"""Convert a classification checkpoint of any known format to our own.

The result holds the backbone's tensors and nothing else; the first 8 hex
digits of its SHA-256 are part of its name.
"""
import argparse
import json
import sys
from pathlib import Path

import _clone  # noqa: F401

# isort: split
from mmcsan.checkpoints import (CheckpointError, convert_checkpoint,
                                save_weights)


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('source', help='file or URL')
    parser.add_argument(
        'target', type=Path, help='file to write; its hash joins the name')
    parser.add_argument(
        '--to',
        choices=['safetensors', 'pth'],
        help='kind of file. Default: that of TARGET')
    parser.add_argument(
        '--ema', action='store_true', help='take the averaged weights')
    parser.add_argument(
        '--prefix', help="what stands before the network's keys, or the entry "
        'that holds it')
    parser.add_argument(
        '--report', choices=['text', 'json'], default='text')
    return parser.parse_args()


def main() -> None:
    """Convert."""
    args = parse_args()
    target = args.target
    if args.to:
        target = target.with_suffix(f'.{args.to}')
    try:
        done = convert_checkpoint(args.source, args.ema, args.prefix)
        if done.unexpected:
            raise CheckpointError(
                f'{args.source}: no place for {len(done.unexpected)} keys of '
                f'{done.format.name}: {", ".join(done.unexpected[:5])}')
        path = save_weights(done.weights, target)
    except CheckpointError as e:
        sys.exit(f'error: {e}')
    report = dict(done.to_dict(), file=str(path))
    if args.report == 'json':
        print(json.dumps(report, indent=2))
        return
    print(f'{args.source}: {report["format"]}, '
          f'{report["parameters"] / 1e6:.3f} M parameters in '
          f'{len(report["converted"])} tensors; left out: '
          f'{", ".join(report["dropped"]) or "nothing"}')
    print(f'written to {path}')


if __name__ == '__main__':
    main()
