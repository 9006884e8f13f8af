"""Check detections and zip them for COCO's test-dev server.

    python tools/leaderboard/coco_test_dev.py \
        work_dirs/NAME/test-dev2017.segm.json \
        --annotations data/coco/annotations/image_info_test-dev2017.json \
        --method NAME --out submissions

Stops at the first fault with its place and its cure, and writes nothing then.
"""
import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import _clone  # noqa: E402, F401

# isort: split
from mmcsan.leaderboards import SubmissionError, pack_coco  # noqa: E402
from mmcsan.leaderboards.coco import LIMIT_MB, MAX_EMPTY  # noqa: E402


def share(text: str) -> float:
    """A number of 0 to 1 from the command line."""
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f'{text} is not in 0 to 1')
    return value


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        'results', help='NAME.bbox.json or NAME.segm.json of the test')
    parser.add_argument(
        '--annotations', required=True, help='image_info_test-dev2017.json')
    parser.add_argument(
        '--method',
        required=True,
        help='name of the method, in the name of the zip file')
    parser.add_argument(
        '--out', required=True, help='folder; the file goes to bbox or segm '
        'in it')
    parser.add_argument(
        '--score-thr',
        type=share,
        default=0.,
        help='leave out detections below this score')
    parser.add_argument(
        '--limit-mb',
        type=float,
        default=LIMIT_MB,
        help='largest json in MB. Default: %(default)g')
    parser.add_argument(
        '--max-empty',
        type=share,
        default=MAX_EMPTY,
        help='largest share of images without a detection. Default: '
        '%(default)g')
    return parser.parse_args()


def main() -> None:
    """Check and pack."""
    args = parse_args()
    try:
        print(
            pack_coco(
                args.results,
                args.annotations,
                args.method,
                args.out,
                score_thr=args.score_thr,
                limit_mb=args.limit_mb,
                max_empty=args.max_empty))
    except SubmissionError as e:
        sys.exit(f'error: {e}')


if __name__ == '__main__':
    main()
