"""Check the data set of a config before training.

Reads all images and annotations that the config describes, counts classes,
and lists every fault by file with its cure. Exits with 1 if there are errors.
"""
import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import _clone  # noqa: E402, F401

# isort: split
import mmcsan  # noqa: E402, F401  before mmdet: it may lack mmcv's operators

# isort: split
from mmengine.config import Config, DictAction  # noqa: E402

from mmcsan.datasets.checking import (Report, SplitReport,  # noqa: E402
                                      check_config)
from mmcsan.datasets.checking.config import SPLITS  # noqa: E402
from mmcsan.datasets.checking.sheet import contact_sheet  # noqa: E402


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file')
    parser.add_argument(
        '--split',
        nargs='+',
        choices=SPLITS,
        default=['train', 'val'],
        help='which dataloaders of the config. Default: train val')
    parser.add_argument(
        '--out',
        help='folder for a contact sheet of each split. Default: '
        'work_dirs/<name of the config>/data')
    parser.add_argument(
        '--images',
        type=int,
        default=12,
        help='images on a contact sheet; 0 draws none. Default: 12')
    parser.add_argument(
        '--most',
        type=int,
        default=5,
        help='files printed of each kind of fault. Default: 5')
    parser.add_argument(
        '--report', help='write all findings to this JSON file')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        help='settings that override the config, as key=value')
    return parser.parse_args()


def check(args: argparse.Namespace) -> Report:
    """Check what the command line asks for.

    Args:
        args (argparse.Namespace): Of :func:`parse_args`.

    Returns:
        Report: A config that refuses its own lines is a fault in it.
    """
    try:
        cfg = Config.fromfile(args.config)
    except (TypeError, ValueError) as error:
        split = SplitReport('config')
        split.add('classes-text' if 'is the text' in str(error) else 'config',
                  args.config, str(error))
        return Report(args.config, [split])
    if args.cfg_options:
        cfg.merge_from_dict(args.cfg_options)
    return check_config(cfg, args.split, args.config)


def draw(report: Report, folder: Path, most: int) -> None:
    """Write the contact sheets.

    Args:
        report (Report): What was found.
        folder (Path): Where they are written.
        most (int): Images on one.
    """
    for split in report.splits:
        sheet = contact_sheet(split, most) if most > 0 else None
        if sheet is not None:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f'{split.name}.png'
            sheet.save(path)
            print(f'contact sheet: {path}')


def main() -> None:
    """Check."""
    args = parse_args()
    if not Path(args.config).is_file():
        sys.exit(f'error: no config at {args.config}')
    try:
        report = check(args)
    except ValueError as error:
        sys.exit(f'error: {error}')
    print(report.to_text(args.most))
    draw(report, Path(args.out or Path('work_dirs', Path(args.config).stem,
                                       'data')), args.images)
    if args.report:
        path = Path(args.report)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report.to_dict(), indent=1) + '\n')
    sys.exit(1 if report.count('error') else 0)


if __name__ == '__main__':
    main()
