"""Predict on images without annotations: classes, label maps or objects.

Of each image, OUT holds json/NAME.json (the top classes; the area of each
class; boxes, scores, names and run-length masks of objects) and
overlays/NAME.png, of segmentation labels/NAME.png as well: the number of the
class of each pixel. Images that cannot be read are named and left out; the
exit code is then 1.

    python tools/predict.py CONFIG CHECKPOINT IMAGES --out OUT
    python tools/predict.py CONFIG CHECKPOINT BIG.tif --slide 1024 768
"""
import argparse
import json
import sys
import warnings
from pathlib import Path

import _common
from _common import fail
from _predictors import PREDICTORS

# isort: split
import torch  # noqa: E402
from mmengine.config import DictAction  # noqa: E402
from PIL import Image  # noqa: E402

from mmcsan.engine import read_checkpoints_as_data  # noqa: E402

SUFFIXES = {'.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp', '.ppm',
            '.pgm'}


def parse_args():
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help='what training saved')
    parser.add_argument(
        'images', nargs='+', help='images, or folders of them')
    parser.add_argument(
        '--out', default='predictions', help='folder. Default: predictions')
    parser.add_argument(
        '--score-thr', type=float, default=0.3,
        help='of detection: objects of a lower score are left out. Default: '
        '0.3')
    parser.add_argument(
        '--top', type=int, default=5,
        help='of classification: how many classes are told. Default: 5')
    parser.add_argument(
        '--device', help='such as cpu or cuda:1. Default: the first GPU')
    parser.add_argument(
        '--slide', nargs=2, type=int, metavar=('CROP', 'STRIDE'),
        help='of large images: predict on windows of CROP x CROP pixels, '
        'STRIDE apart, and put them together; segmentation then takes the '
        'image as it is, without resizing')
    parser.add_argument(
        '--cfg-options', nargs='+', action=DictAction,
        help='settings that override the config, as key=value')
    parser.set_defaults(local_rank=0, launcher='none', work_dir=None)
    return parser.parse_args()


def check(args) -> None:
    """Refuse what cannot run before anything is loaded."""
    if args.device:
        try:
            torch.zeros(1, device=args.device)
        except Exception as e:
            fail(f'--device {args.device} cannot be used here: '
                 f'{str(e).splitlines()[0]}')
    if args.slide and not 0 < args.slide[1] <= args.slide[0]:
        fail(f'--slide {args.slide[0]} {args.slide[1]}: the stride must be 1 '
             'to CROP, or parts of the image are never seen')


def find_images(sources: list) -> dict:
    """The images and the names of what is written of them.

    Args:
        sources (list[str]): Files and folders; folders of folders too.

    Returns:
        dict[str, Path]: By name: the path below its folder without suffix,
        or with it where names would be the same.

    Raises:
        SystemExit: If there is none.
    """
    found = []
    for source in map(Path, sources):
        if source.is_file():
            found.append((Path(source.name), source))
        elif source.is_dir():
            found += [(path.relative_to(source), path)
                      for path in sorted(source.rglob('*'))
                      if path.suffix.lower() in SUFFIXES and path.is_file()]
        else:
            fail(f'there is no image or folder {source}')
    if not found:
        fail(f'there is no image in {", ".join(sources)}; looked for '
             f'{", ".join(sorted(SUFFIXES))}')
    stems = [str(name.with_suffix('')) for name, _ in found]
    named = {
        stem if stems.count(stem) == 1 else str(name): path
        for stem, (name, path) in zip(stems, found)
    }
    if len(named) < len(found):
        fail('two images have one name; predict on their folders one by one')
    return named


def fault(path: Path):
    """Why an image cannot be read, or None."""
    try:
        with warnings.catch_warnings(), Image.open(path) as image:
            warnings.simplefilter('ignore')
            image.load()
    except Exception as e:
        return str(e) or type(e).__name__
    return None


def write(out: Path, name: str, prediction) -> None:
    """Write what was predicted on an image.

    Args:
        out (Path): Folder.
        name (str): Of the image.
        prediction (Prediction): What to write.
    """
    pictures = dict(overlays=prediction.overlay, labels=prediction.labels)
    for kind, pixels in pictures.items():
        if pixels is not None:
            path = out / kind / f'{name}.png'
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    path = out / 'json' / f'{name}.json'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps(prediction.content, indent=1, ensure_ascii=False),
        encoding='utf-8')


def main() -> None:
    """Predict."""
    args = parse_args()
    check(args)
    cfg = _common.load_config(args)
    checkpoint = _common.find_checkpoint(args.checkpoint)
    images = find_images(args.images)
    Image.MAX_IMAGE_PIXELS = None  # large images are what --slide is for
    read_checkpoints_as_data()
    predictor = PREDICTORS[cfg.default_scope](cfg, args)
    predictor.load(checkpoint)
    out, bad = Path(args.out), 0
    for number, (name, path) in enumerate(images.items(), 1):
        reason = fault(path)
        if reason:
            bad += 1
            print(f'not read: {path}: {reason}', file=sys.stderr)
            continue
        prediction = predictor(path)
        write(out, name, prediction)
        print(f'[{number}/{len(images)}] {path}: {prediction.summary}')
    print(f'saved {len(images) - bad} predictions in {out}')
    if bad:
        raise SystemExit(f'error: {bad} of {len(images)} images could not be '
                         'read; they are named above')


if __name__ == '__main__':
    main()
