"""Check label maps and zip them for the ADE20K server.

    python tools/leaderboard/ade20k.py work_dirs/NAME/label-maps \
        --images data/ade/release_test/testing --method NAME --out submissions

Stops at the first fault with its place and its cure, and writes nothing then.
"""
import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import _clone  # noqa: E402, F401

# isort: split
from mmcsan.leaderboards import SubmissionError, pack_ade20k  # noqa: E402


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', help='the label maps')
    parser.add_argument(
        '--images',
        required=True,
        help='the test images, release_test/testing')
    parser.add_argument(
        '--method',
        help='name of the method and the zip file. Default: that of FOLDER')
    parser.add_argument('--out', required=True, help='folder of the zip file')
    return parser.parse_args()


def main() -> None:
    """Check and pack."""
    args = parse_args()
    try:
        print(pack_ade20k(args.folder, args.images, args.out, args.method))
    except SubmissionError as e:
        sys.exit(f'error: {e}')


if __name__ == '__main__':
    main()
