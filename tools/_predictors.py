"""Predictions on single images, by the inferencers of the codebases."""
import copy
import warnings
from pathlib import Path
from typing import List, NamedTuple, Optional

from _checkpoint_fit import require_fit
from _common import fail

# isort: split
import mmcv
import numpy as np
import torch
from mmengine.device import get_device
from mmengine.logging import MMLogger
from mmengine.registry import DATASETS, init_default_scope
from mmengine.structures import InstanceData

# Boxes and outlines that touch the edge of an image.
warnings.filterwarnings('ignore', module='mmengine.visualization')

ANNOTATIONS = ('LoadAnnotations', 'MaskValuesToClasses')
CUT = 2
"""Pixels from the edge of a window within which a box counts as cut."""
MERGE_IOU, MERGE_SHARE = 0.5, 0.6
"""What makes two boxes of overlapping windows one object: their IoU, or, of
a box that is cut, the share of it that lies in the other."""


class Prediction(NamedTuple):
    """What is written of an image, and a line about it."""

    content: dict
    overlay: np.ndarray
    labels: Optional[np.ndarray]
    summary: str


def windows(height: int, width: int, crop: int, stride: int) -> List[tuple]:
    """Top left corners of windows that cover an image; the last are flush.

    Args:
        height (int): Of the image, in pixels.
        width (int): Of the image, in pixels.
        crop (int): Side of a window.
        stride (int): Distance of neighbours.

    Returns:
        list[tuple[int, int]]: (y, x), row by row.
    """

    def starts(length):
        last = max(length - crop, 0)
        return [*range(0, last, stride), last]

    return [(y, x) for y in starts(height) for x in starts(width)]


def merge(boxes: np.ndarray, scores: np.ndarray, labels: np.ndarray,
          cut: np.ndarray) -> list:
    """Leave one box of each object that several windows have found.

    Whole boxes go first, then those that the edge of a window cuts, each from
    the highest score down; a box is left out where one of its class that went
    before covers it.

    Args:
        boxes (np.ndarray): x1, y1, x2, y2 in pixels of the image, (N, 4).
        scores (np.ndarray): (N, ).
        labels (np.ndarray): (N, ).
        cut (np.ndarray): Booleans (N, ).

    Returns:
        list[int]: What stays.
    """
    from mmdet.evaluation import bbox_overlaps
    iou = bbox_overlaps(boxes, boxes)
    inside = bbox_overlaps(boxes, boxes, mode='iof')  # (of this, in that)
    kept = []
    for index in np.lexsort((-scores, cut)):
        others = [k for k in kept if labels[k] == labels[index]]
        if (iou[index, others] > MERGE_IOU).any() or cut[index] and (
                inside[index, others] > MERGE_SHARE).any():
            continue
        kept.append(index)
    return sorted(kept, key=lambda k: -scores[k])


def class_colours(meta: dict) -> list:
    """The colours of classes; evenly spread ones where there are none.

    Args:
        meta (dict): ``classes``, and perhaps ``palette``.

    Returns:
        list: A colour a class, red, green and blue from 0 to 255.
    """
    number, palette = len(meta['classes']), meta.get('palette')
    if isinstance(palette, (list, tuple)) and len(palette) >= number:
        return [list(colour) for colour in palette[:number]]
    return [[67 * i % 256, 131 * i % 256, 197 * i % 256]
            for i in range(number)]


class _Predictor:
    """An inferencer, and how its results are written.

    Args:
        cfg (Config): The config; changed.
        args (argparse.Namespace): The command line of ``predict.py``.
    """

    def __init__(self, cfg, args) -> None:
        self.cfg, self.args = cfg, args
        self.device = args.device or get_device()
        if cfg.get('test_dataloader') is None:
            fail(f'{args.config} has no test_dataloader, which tells how '
                 'images are prepared')
        self.dataset = cfg.test_dataloader.dataset
        while 'pipeline' not in self.dataset and 'dataset' in self.dataset:
            self.dataset = self.dataset.dataset
        cfg.test_dataloader.dataset = self.dataset
        if cfg.get('visualizer'):
            cfg.visualizer.vis_backends = []
        self._drop(ANNOTATIONS)

    def _drop(self, names) -> None:
        """Take steps out of the pipeline."""
        self.dataset.pipeline = [
            step for step in self.dataset.pipeline
            if str(step['type']).split('.')[-1] not in names
        ]

    def load(self, checkpoint: str) -> None:
        """Build the model and load its weights.

        Args:
            checkpoint (str): The file.

        Raises:
            SystemExit: If its weights are of another model.
        """
        init_default_scope(self.cfg.default_scope)
        # What the inferencers say of weights and names that they lack is
        # settled below.
        MMLogger.get_current_instance().setLevel('ERROR')
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            self.inferencer = self._build(copy.deepcopy(self.cfg))
        weights, meta = require_fit(self.inferencer.model, checkpoint)
        self.inferencer.model.load_state_dict(weights, strict=False)
        # What a converted checkpoint does not hold, the config does.
        self.meta = dict(meta.get('dataset_meta') or self._metainfo())
        self.names = [str(n) for n in self.meta.get('classes') or ()]

    def _metainfo(self) -> dict:
        with DATASETS.switch_scope_and_registry(
                self.cfg.default_scope) as registry:
            return registry.build(dict(self.dataset, lazy_init=True)).metainfo

    def _name(self, label: int) -> str:
        return self.names[label] if label < len(self.names) else str(label)

    def _content(self, path: Path, height: int, width: int, **more) -> dict:
        return dict(image=str(path), height=height, width=width, **more)


class _Classifier(_Predictor):

    def _build(self, cfg):
        if self.args.slide:
            fail('--slide is for segmentation and detection')
        from mmpretrain.apis import ImageClassificationInferencer
        return ImageClassificationInferencer(
            cfg, pretrained=False, device=self.device)

    def __call__(self, path: Path) -> Prediction:
        [sample] = self.inferencer(str(path), return_datasamples=True)
        scores = sample.pred_score
        top = [
            dict(class_name=self._name(i), label=i, score=float(scores[i]))
            for i in scores.argsort(descending=True)[:self.args.top].tolist()
        ]
        image = mmcv.imread(str(path), channel_order='rgb')
        height, width = image.shape[:2]
        lines = [f'{t["class_name"]}  {100 * t["score"]:.1f} %' for t in top]
        summary = lines[0].replace('  ', ' ')
        return Prediction(
            self._content(path, height, width, top=top),
            _caption(image, lines), None, summary)


class _Segmentor(_Predictor):

    def _build(self, cfg):
        from mmseg.apis import MMSegInferencer
        if self.args.slide:
            crop, stride = self.args.slide
            cfg.model.test_cfg.update(
                mode='slide', crop_size=(crop, crop), stride=(stride, stride))
            steps = cfg.test_dataloader.dataset.pipeline
            cfg.test_dataloader.dataset.pipeline = [
                s for s in steps if 'Resize' not in str(s['type'])]
        cfg.visualizer = dict(type='SegLocalVisualizer', vis_backends=[])
        return MMSegInferencer(
            cfg, device=self.device, show_progress=False)

    def __call__(self, path: Path) -> Prediction:
        [sample] = self._samples(path)
        labels = sample.pred_sem_seg.cpu().data[0].numpy()
        labels = labels.astype(np.uint8 if labels.max() < 256 else np.uint16)
        numbers, pixels = np.unique(labels, return_counts=True)
        classes = [
            dict(class_name=self._name(int(n)), label=int(n), pixels=int(p),
                 share=round(int(p) / labels.size, 6))
            for p, n in sorted(zip(pixels, numbers), reverse=True)
        ]
        image = mmcv.imread(str(path), channel_order='rgb')
        visualizer = self.inferencer.visualizer
        visualizer.set_dataset_meta(self.names, class_colours(self.meta))
        visualizer.alpha = .5
        visualizer.add_datasample(
            'image', image, sample.cpu(), draw_gt=False)
        summary = ', '.join(f'{c["class_name"]} {100 * c["share"]:.1f} %'
                            for c in classes[:3])
        return Prediction(
            self._content(path, *labels.shape, classes=classes),
            visualizer.get_image(), labels, summary)

    def _samples(self, path):
        found = self.inferencer(
            str(path), return_datasamples=True, batch_size=1)
        return found if isinstance(found, list) else [found]


class _Detector(_Predictor):

    def _build(self, cfg):
        from mmdet.apis import DetInferencer
        return DetInferencer(
            cfg, device=self.device, show_progress=False)

    def __call__(self, path: Path) -> Prediction:
        from mmdet.structures import DetDataSample
        image = mmcv.imread(str(path))
        found = self._slide(image) if self.args.slide else self._on(image)
        drawn = DetDataSample(pred_instances=found)
        visualizer = self.inferencer.visualizer
        visualizer.dataset_meta = dict(
            palette='random', **{'classes': tuple(self.names)})
        if self.meta.get('palette'):
            visualizer.dataset_meta['palette'] = self.meta['palette']
        visualizer.add_datasample(
            'image', image[..., ::-1], drawn, draw_gt=False, pred_score_thr=0)
        objects = self._objects(found)
        counts = {}
        for item in objects:
            counts[item['class_name']] = counts.get(item['class_name'], 0) + 1
        summary = ', '.join(f'{n} {name}' for name, n in counts.items())
        return Prediction(
            self._content(path, *image.shape[:2], objects=objects),
            visualizer.get_image(), None, summary or 'nothing found')

    def _on(self, image: np.ndarray) -> InstanceData:
        """Objects in an image (H, W, 3), BGR."""
        sample = self.inferencer(
            image, return_datasamples=True)['predictions'][0]
        if 'pred_instances' not in sample:
            fail(f'{self.args.config} predicts no objects')
        found = sample.pred_instances.cpu()
        return found[found.scores >= self.args.score_thr]

    def _slide(self, image: np.ndarray) -> InstanceData:
        """Objects in the windows of an image, each object once."""
        crop, stride = self.args.slide
        height, width = image.shape[:2]
        parts, corners, cut = [], [], []
        for y, x in windows(height, width, crop, stride):
            window = np.ascontiguousarray(image[y:y + crop, x:x + crop])
            part = self._on(window)
            corner = torch.tensor([x, y, x, y])
            part.bboxes = part.bboxes + corner
            x1, y1, x2, y2 = part.bboxes.numpy().T
            cut.append((x > 0) & (x1 < x + CUT) | (y > 0) & (y1 < y + CUT)
                       | (x + crop < width) & (x2 > x + crop - CUT)
                       | (y + crop < height) & (y2 > y + crop - CUT))
            masks = part.pop('masks', None)
            parts.append(part)
            corners += [(y, x, m) for m in masks] if masks is not None else []
        found = InstanceData.cat(parts)
        kept = merge(found.bboxes.numpy(), found.scores.numpy(),
                     found.labels.numpy(), np.concatenate(cut))
        merged = found[torch.tensor(kept, dtype=torch.long)]
        if corners:
            merged.masks = _paste([corners[k] for k in kept], height, width)
        return merged

    def _objects(self, found: InstanceData) -> list:
        """Objects as JSON holds them."""
        from mmdet.structures.mask import encode_mask_results
        out = [
            dict(class_name=self._name(label), label=label,
                 score=round(score, 6), box=[round(v, 2) for v in box])
            for box, score, label in zip(found.bboxes.tolist(),
                                         found.scores.tolist(),
                                         found.labels.tolist())
        ]
        if 'masks' in found:
            masks = encode_mask_results(found.masks.numpy())
            for item, mask in zip(out, masks):
                item['mask'] = dict(
                    size=mask['size'], counts=mask['counts'].decode())
        return out


def _paste(parts: list, height: int, width: int) -> torch.Tensor:
    """Masks of windows in the image: (N, height, width)."""
    whole = torch.zeros(len(parts), height, width, dtype=torch.bool)
    for target, (y, x, mask) in zip(whole, parts):
        target[y:y + mask.shape[0], x:x + mask.shape[1]] = mask
    return whole


def _caption(image: np.ndarray, lines: List[str]) -> np.ndarray:
    """An image with lines of text below it, RGB."""
    import matplotlib
    matplotlib.use('Agg')
    import matplotlib.pyplot as plt
    height, width = image.shape[:2]
    side = 4 / max(height, width)
    text = .22 * len(lines) + .15
    size = max(width * side, 2.6), height * side + text
    fig = plt.figure(figsize=size, dpi=110)
    axis = fig.add_axes([0, text / size[1], 1, 1 - text / size[1]])
    axis.imshow(image)
    axis.axis('off')
    for index, line in enumerate(lines):
        fig.text(.03, (text - .2 - .22 * index) / size[1], line, fontsize=9,
                 weight='bold' if index == 0 else 'normal')
    fig.canvas.draw()
    pixels = np.asarray(fig.canvas.buffer_rgba())[..., :3].copy()
    plt.close(fig)
    return pixels


PREDICTORS = dict(
    mmpretrain=_Classifier, mmseg=_Segmentor, mmdet=_Detector)
