"""The images of the test set on which a model is worst, as pictures.

The score of an image is, of a classifier, the probability of the class that
is there; of a segmentor, the mean IoU of the classes in the image or in its
prediction; of a detector, F1 of its boxes: 2 right / (objects + predictions),
where a pair of enough IoU and one class is right. Of equal scores, the image
with more errors is worse.

Writes largest_errors.png, a sheet of ground truth beside prediction, the
single pictures in full size in largest_errors/, and the scores of all images,
the worst first, in largest_errors.csv.

    python tools/analysis/largest_errors.py CONFIG CHECKPOINT --top 12
"""
import csv
import heapq
from pathlib import Path
from typing import NamedTuple

import _bench
import _results
import numpy as np
from _matrix import ConfusionMatrix
from _predictors import class_colours

# isort: split
import mmcv  # noqa: E402  behind mmcsan, which serves its operators
import torch  # noqa: E402
from mmengine.structures import InstanceData, PixelData  # noqa: E402
from PIL import Image  # noqa: E402

DRAWN = 800
"""About the longer side of what is drawn, in pixels; larger images stay."""


class Scored(NamedTuple):
    """An image and how well it was predicted; sorts from bad to good."""

    score: float
    fewer: int
    path: str
    detail: str


def parse_args():
    """Read the command line."""
    parser = _results.new_parser(__doc__, 'analysis')
    parser.add_argument(
        '--top', type=int, default=12,
        help='how many images are drawn. Default: 12')
    _results.add_box_options(parser)
    return parser.parse_args()


def judge(sample, counts: np.ndarray, scope: str, names: list) -> Scored:
    """Score an image.

    Args:
        sample (Sample): The image.
        counts (np.ndarray): Its confusion matrix.
        scope (str): 'mmpretrain', 'mmseg' or 'mmdet'.
        names (list[str]): Of the classes.

    Returns:
        Scored: Score from 0, all wrong, to 1.
    """
    right = np.diag(counts)
    wrong = int(counts.sum() - right.sum())
    if scope == 'mmpretrain':
        there, scores = sample.truth, sample.prediction
        said = int(scores.argmax())
        detail = (f'is {names[there]} ({100 * scores[there]:.1f} %), called '
                  f'{names[said]} ({100 * scores[said]:.1f} %)')
        return Scored(float(scores[there]), -wrong, sample.path, detail)
    if scope == 'mmseg':
        union = counts.sum(0) + counts.sum(1) - right
        score = (right[union > 0] / union[union > 0]).mean() if (
            union > 0).any() else 1.0
        share = 100 * wrong / max(counts.sum(), 1)
        return Scored(float(score), -wrong, sample.path,
                      f'{share:.1f} % of the pixels are wrong')
    objects, found = counts[:-1].sum(), counts[:, :-1].sum()
    score = 2 * right.sum() / (objects + found) if objects + found else 1.0
    swapped = wrong - counts[-1].sum() - counts[:, -1].sum()
    detail = (f'{right.sum()} of {objects} objects found, '
              f'{counts[:, -1].sum()} missed, {swapped} of another class, '
              f'{counts[-1].sum()} predictions too many')
    return Scored(float(score), -wrong, sample.path, detail)


class Painter:
    """Draws with the visualizers of mmdet and mmseg.

    Args:
        scope (str): 'mmpretrain', 'mmseg' or 'mmdet'.
        meta (dict): Names and colours of the classes.
        score_thr (float): Predictions of a lower score are not drawn.
    """

    def __init__(self, scope: str, meta: dict, score_thr: float) -> None:
        self.scope, self.score_thr = scope, score_thr
        if scope == 'mmseg':
            from mmseg.visualization import SegLocalVisualizer
            self.visualizer = SegLocalVisualizer(alpha=.5)
            self.visualizer.set_dataset_meta(
                list(meta['classes']), class_colours(meta))
        elif scope == 'mmdet':
            from mmdet.visualization import DetLocalVisualizer
            self.visualizer = DetLocalVisualizer()
            self.visualizer.dataset_meta = dict(
                meta, palette=meta.get('palette') or 'random')

    def draw(self, sample) -> list:
        """Pictures of an image, RGB of (H, W, 3), truth and prediction.

        Of a classifier it is one picture.
        """
        image = mmcv.imfrombytes(
            Path(sample.path).read_bytes(), channel_order='rgb')
        if self.scope == 'mmpretrain':
            return [image]
        # Letters and lines have one size: small images are enlarged.
        scale = max(1, round(DRAWN / max(image.shape[:2])))
        pack = self._maps if self.scope == 'mmseg' else self._objects
        options = dict(pred_score_thr=self.score_thr) \
            if self.scope == 'mmdet' else {}
        truth, prediction = pack(sample, image.shape[:2], scale)
        image, out = enlarge(image, scale), []
        for data in (truth, prediction):
            self.visualizer.add_datasample(
                'image', image, data, draw_gt=data is truth,
                draw_pred=data is prediction, **options)
            out.append(self.visualizer.get_image())
        return out

    @staticmethod
    def _maps(sample, shape, scale):
        from mmseg.structures import SegDataSample

        # 255 is what is not judged, and is not drawn.
        def pixels(labels):
            labels = np.where(labels < 0, 255, labels).astype(np.int64)
            return PixelData(data=torch.from_numpy(enlarge(labels, scale))[
                None])

        return (SegDataSample(gt_sem_seg=pixels(sample.truth)),
                SegDataSample(pred_sem_seg=pixels(sample.prediction)))

    @staticmethod
    def _objects(sample, shape, scale):
        from mmdet.structures import DetDataSample

        def objects(values, **more):
            out = InstanceData(
                bboxes=scale * torch.from_numpy(values['bboxes']).float(),
                labels=torch.from_numpy(values['labels']), **more)
            masks = values.get('masks')
            if len(out) and masks is not None and all(
                    m is not None for m in masks):
                out.masks = np.stack([
                    enlarge(m, scale) for m in masks_of(masks, shape)])
            return out

        truth, prediction = sample.truth, sample.prediction
        scores = torch.from_numpy(prediction['scores'])
        return (DetDataSample(gt_instances=objects(truth)),
                DetDataSample(pred_instances=objects(
                    prediction, scores=scores)))


def enlarge(pixels: np.ndarray, scale: int) -> np.ndarray:
    """Repeat pixels: (H, W, ...) to (scale H, scale W, ...)."""
    return pixels.repeat(scale, 0).repeat(scale, 1)


def masks_of(masks, shape) -> np.ndarray:
    """Masks as (N, H, W) booleans, from polygons, run lengths or tensors."""
    import pycocotools.mask as coco_masks
    if isinstance(masks, torch.Tensor):
        return masks.cpu().numpy().astype(bool)
    out = []
    for mask in masks:
        if isinstance(mask, (list, tuple)):
            mask = coco_masks.merge(coco_masks.frPyObjects(mask, *shape))
        elif isinstance(mask.get('counts'), list):
            mask = coco_masks.frPyObjects(mask, *shape)
        out.append(coco_masks.decode(mask))
    return np.stack(out).astype(bool)


def sheet(worst: list, pictures: list, path: Path) -> None:
    """Put pictures side by side, each under its score.

    Args:
        worst (list[Scored]): What they are.
        pictures (list[list[np.ndarray]]): One or two an image.
        path (Path): The PNG file.
    """
    import matplotlib
    matplotlib.use('Agg')
    import matplotlib.pyplot as plt
    pair = len(pictures[0])
    groups = min(2 if pair == 2 else 4, len(worst))
    rows = -(-len(worst) // groups)
    fig = plt.figure(
        figsize=(groups * pair * 3.1 + .2, rows * 3.6), layout='constrained')
    parts = np.atleast_1d(fig.subfigures(rows, groups, wspace=.02)).ravel()
    for place, part in enumerate(parts[:len(worst)]):
        item = worst[place]
        part.suptitle(
            f'{place + 1}. {Path(item.path).name}: {item.score:.3f}\n'
            + item.detail.replace(', called', ',\ncalled').replace(
                ' missed,', ' missed,\n'), fontsize=8)
        axes = part.subplots(1, pair, squeeze=False)[0]
        titles = ['ground truth', 'prediction'] if pair == 2 else ['']
        for axis, picture, title in zip(axes, pictures[place], titles):
            axis.imshow(picture)
            axis.set_title(title, fontsize=8)
            axis.axis('off')
    fig.savefig(path, dpi=110)
    plt.close(fig)


class Worst:
    """Scores all images and keeps what is needed to draw the worst.

    Args:
        results (Results): Tells the names.
        matrix (ConfusionMatrix): Counts an image.
        top (int): How many are kept.
    """

    def __init__(self, results, matrix: ConfusionMatrix, top: int) -> None:
        self.results, self.matrix, self.top = results, matrix, top
        self.all, self._heap = [], []

    def add(self, sample) -> None:
        """Score an image."""
        number = self.results.num_classes(sample)
        scored = judge(sample, self.matrix.add(sample, number),
                       self.results.scope, self.results.names(number))
        # The heap's first is the best of the worst; of equals, the last.
        key = (-scored.score, -scored.fewer, -len(self.all))
        self.all.append(scored)
        keep = heapq.heappush if len(self._heap) < self.top else \
            heapq.heappushpop
        keep(self._heap, (*key, scored, sample))

    def kept(self) -> list:
        """Pairs of score and sample, the worst first."""
        return [entry[3:] for entry in sorted(self._heap, reverse=True)]


def main() -> None:
    """Score, print, draw."""
    args = parse_args()
    if args.top < 1:
        _results.fail(f'--top {args.top} is not at least 1')
    results = _results.Results(args)
    matrix = ConfusionMatrix(results.scope, args.score_thr, args.iou_thr)
    worst = Worst(results, matrix, args.top)
    images = results.each(worst.add)
    items, samples = zip(*worst.kept())
    folder = results.out / 'largest_errors'
    folder.mkdir(parents=True, exist_ok=True)
    painter = Painter(results.scope, results.meta, args.score_thr)
    pictures = [painter.draw(sample) for sample in samples]
    for place, (item, drawn) in enumerate(zip(items, pictures), 1):
        name = folder / f'{place:03d}_{Path(item.path).stem}.png'
        Image.fromarray(np.concatenate(drawn, 1)).save(name)
    sheet(list(items), pictures, results.out / 'largest_errors.png')
    with open(results.out / 'largest_errors.csv', 'w', newline='',
              encoding='utf-8') as file:
        writer = csv.writer(file)
        writer.writerow(['score', 'image', 'what'])
        writer.writerows(
            [f'{s.score:.4f}', s.path, s.detail] for s in sorted(worst.all))
    table = _bench.markdown(
        ('', 'score', 'image', 'what'),
        [(n, f'{s.score:.3f}', s.path, s.detail)
         for n, s in enumerate(items, 1)])
    print(f'{images:,} images; the worst:\n\n{table}\n\nsaved '
          f'{results.out / "largest_errors.png"}, .csv and single pictures '
          f'in {folder}')


if __name__ == '__main__':
    main()
