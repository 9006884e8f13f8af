"""Predict on images without annotations, and draw what is found.

Writes OUT/vis/NAME, the image under its predictions, and OUT/pred/NAME: of
semantic segmentation a PNG with the number of the class of each pixel, of
detection a JSON file with boxes, masks, labels and scores.
"""
import argparse
import sys
from pathlib import Path

from _files import fail, images_in, write_json

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import _clone  # noqa: E402, F401

# isort: split
import mmcsan  # noqa: E402, F401  before mmdet: it may lack mmcv's operators

# isort: split
import numpy as np  # noqa: E402
from mmengine.config import Config  # noqa: E402
from PIL import Image  # noqa: E402

from mmcsan.engine import read_checkpoints_as_data  # noqa: E402


def parse_args():
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help='what training saved')
    parser.add_argument('images', help='an image, or a folder of images')
    parser.add_argument(
        '--out', default='predictions', help='folder. Default: predictions')
    parser.add_argument(
        '--score',
        type=float,
        default=0.3,
        help='of detection: least score that is drawn. Default: 0.3')
    parser.add_argument(
        '--device', help='such as cpu or cuda:1. Default: the first GPU')
    return parser.parse_args()


def new_predictor(args):
    """Load the model.

    Args:
        args (argparse.Namespace): The command line.

    Returns:
        callable: From the path of an image to its prediction (a label map,
        or a dict of lists) and the drawn image.
    """
    scope = Config.fromfile(args.config).get('default_scope')
    options = {}
    if scope == 'mmseg':
        from mmseg.apis import MMSegInferencer as Inferencer
    elif scope == 'mmdet':
        from mmdet.apis import DetInferencer as Inferencer
        options['pred_score_thr'] = args.score
    else:
        fail(f'{args.config} is of {scope}: segmentation and detection can '
             'be predicted here')
    inferencer = Inferencer(args.config, args.checkpoint, device=args.device)
    inferencer.show_progress = False

    def predict(path):
        result = inferencer(str(path), return_vis=True, **options)
        prediction, drawn = result['predictions'], result['visualization']
        return (prediction[0] if scope == 'mmdet' else prediction), drawn

    return predict


def save(name, prediction, drawn, out):
    """Write what was predicted on an image.

    Args:
        name (str): Of the image, without suffix.
        prediction (np.ndarray | dict): As of :func:`new_predictor`.
        drawn (list[np.ndarray]): The drawn image.
        out (Path): Folder.
    """
    pictures = {out / 'vis' / f'{name}.png': np.squeeze(drawn)}
    if isinstance(prediction, dict):
        write_json(out / 'pred' / f'{name}.json', prediction)
    else:
        pictures[out / 'pred' / f'{name}.png'] = prediction
    for path, pixels in pictures.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(pixels, np.uint8)).save(path)


def main():
    """Predict."""
    args = parse_args()
    for path in (args.config, args.checkpoint):
        if not Path(path).is_file():
            fail(f'there is no file {path}')
    source = Path(args.images)
    images = {source.stem: source} if source.is_file() else images_in(source)
    read_checkpoints_as_data()
    predict = new_predictor(args)
    for name, path in images.items():
        save(name, *predict(path), Path(args.out))
    print(f'{args.out}: {len(images):,} images')


if __name__ == '__main__':
    main()
