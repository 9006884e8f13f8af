"""A table of scores for each class of the test set, in percent.

Segmentation: IoU, accuracy (recall), precision and share of the pixels.
Detection: AP, AP50 and AR of boxes and, where there are, masks, as COCO
counts them with 100 predictions an image. Classification: precision, recall,
F1. Prints the table and writes per_class.csv.

    python tools/analysis/per_class.py CONFIG CHECKPOINT --sort IoU
"""
import contextlib
import csv
import io
import tempfile
from typing import List

import _bench
import _results
import numpy as np
from _matrix import ConfusionMatrix

DETECTIONS = 100
"""Predictions of an image that COCO's scores count."""


def parse_args():
    """Read the command line."""
    parser = _results.new_parser(__doc__, 'analysis')
    parser.add_argument(
        '--sort', metavar='COLUMN',
        help='order by this column, the worst first. Default: the order of '
        'the classes')
    return parser.parse_args()


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Percent; nan where there is nothing to judge."""
    return 100 * part / np.where(whole > 0, whole, np.nan)


def of_matrix(counts: np.ndarray, scope: str) -> dict:
    """Scores from the counts of a classifier or segmentor.

    Args:
        counts (np.ndarray): Confusion matrix of shape (C, C).
        scope (str): 'mmpretrain' or 'mmseg'.

    Returns:
        dict[str, np.ndarray]: Columns of C values.
    """
    right, there, said = np.diag(counts), counts.sum(1), counts.sum(0)
    if scope == 'mmpretrain':
        return {
            'images': there,
            'precision': _ratio(right, said),
            'recall': _ratio(right, there),
            'F1': _ratio(2 * right, there + said)
        }
    return {
        '% of pixels': 100 * there / max(there.sum(), 1),
        'IoU': _ratio(right, there + said - right),
        'Acc': _ratio(right, there),
        'precision': _ratio(right, said)
    }


class CocoScores:
    """AP, AP50 and AR by class, from mmdet's metric and COCO's evaluation.

    Args:
        evaluators (list[dict]): Metrics of the config: a ``CocoMetric`` tells
            the file of annotations, without one they come from the data set.
    """

    def __init__(self, evaluators: List[dict]) -> None:
        from mmdet.evaluation import CocoMetric
        file = next((e['ann_file'] for e in evaluators
                     if str(e.get('type')).endswith('CocoMetric')
                     and e.get('ann_file')), None)
        self.file = file
        with contextlib.redirect_stdout(io.StringIO()):
            self.metric = CocoMetric(ann_file=file)
        self.kinds = ['bbox']

    def add(self, sample) -> None:
        """Take the predictions of an image."""
        truth = sample.truth
        instances = [
            dict(bbox=list(box), bbox_label=int(label), mask=mask,
                 ignore_flag=int(ignored))
            for box, label, mask, ignored in zip(
                truth['bboxes'], truth['labels'], truth['masks'],
                truth['ignored'])
        ]
        self.metric.process({}, [dict(sample.raw, instances=instances)])
        with_masks = all(m is not None for m in truth['masks'])
        if 'masks' in sample.prediction and (self.file or with_masks):
            self.kinds = ['bbox', 'segm']

    def columns(self, classes: tuple) -> dict:
        """The scores.

        Args:
            classes (tuple[str]): Names of the C classes.

        Returns:
            dict[str, np.ndarray]: Columns of C values.
        """
        from mmdet.datasets.api_wrappers import COCO
        metric = self.metric
        metric.dataset_meta = dict(classes=classes)
        truths, predictions = zip(*metric.results)
        with tempfile.TemporaryDirectory() as folder, \
                contextlib.redirect_stdout(io.StringIO()):
            prefix = f'{folder}/results'
            coco = COCO(self.file or metric.gt_to_coco_json(truths, prefix))
            metric.cat_ids = coco.get_cat_ids(cat_names=classes)
            files = metric.results2json(predictions, prefix)
            objects = [len(coco.get_ann_ids(cat_ids=[i], iscrowd=False))
                       for i in metric.cat_ids]
            out = {'objects': np.array(objects)}
            for kind in self.kinds:
                out.update(self._evaluate(coco, files[kind], kind))
        return out

    def _evaluate(self, coco, file: str, kind: str) -> dict:
        from mmdet.datasets.api_wrappers import COCOeval
        from mmengine.fileio import load
        found = load(file)
        if not found:
            _results.fail('the model found nothing in any image')
        if kind == 'segm':
            for entry in found:
                entry.pop('bbox')  # or boxes would tell the areas
        scores = COCOeval(coco, coco.loadRes(found), kind)
        scores.params.catIds = self.metric.cat_ids
        scores.params.maxDets = [DETECTIONS]
        scores.evaluate()
        scores.accumulate()
        # (IoU, recall, class) and (IoU, class), of all areas
        precision = scores.eval['precision'][..., 0, 0]
        recall = scores.eval['recall'][..., 0, 0]
        name = 'mask ' if kind == 'segm' else ''
        return {
            f'{name}AP': _mean(precision, (0, 1)),
            f'{name}AP50': _mean(precision[0], 0),
            f'{name}AR': _mean(recall, 0)
        }


def _mean(values: np.ndarray, axis) -> np.ndarray:
    """Percent; COCO writes -1 for a class without objects: nan."""
    none = (values < 0).all(axis)
    return np.where(none, np.nan, 100 * values.mean(axis))


def rows(names: list, columns: dict, sort) -> list:
    """The table: a row a class, and their mean.

    Args:
        names (list[str]): Of the C classes.
        columns (dict[str, np.ndarray]): C values each.
        sort (str | None): A column, the worst first.

    Returns:
        list[list]: Name and values.
    """
    order = np.arange(len(names))
    if sort:
        known = {key.lower(): key for key in columns}
        if sort.lower() not in known:
            _results.fail(f'--sort {sort}: the columns are '
                          f'{", ".join(columns)}')
        order = np.argsort(columns[known[sort.lower()]], kind='stable')
    return [[names[i], *(c[i] for c in columns.values())] for i in order]


def mean_row(columns: dict) -> list:
    """The mean of the classes that have a score; counts are summed."""
    values = []
    for key, column in columns.items():
        amount = column.dtype.kind == 'i' or key.startswith('%')
        judged = column[~np.isnan(column)]
        values.append(column.sum() if amount else
                      judged.mean() if len(judged) else np.nan)
    return ['mean, or sum', *values]


def cell(value) -> str:
    """A value for people."""
    if isinstance(value, str):
        return value
    if isinstance(value, (int, np.integer)):
        return f'{value:>7,}'
    return f'{"-":>6}' if np.isnan(value) else f'{value:6.2f}'


def main() -> None:
    """Judge, print, save."""
    args = parse_args()
    results = _results.Results(args)
    if results.scope == 'mmdet':
        scores = CocoScores(results.evaluators)
        images = results.each(scores.add)
        names = list(results.meta['classes'])
        columns = scores.columns(tuple(names))
    else:
        matrix = ConfusionMatrix(results.scope)
        images = results.each(
            lambda sample: matrix.add(sample, results.num_classes(sample)))
        names = results.names(len(matrix.counts))
        columns = of_matrix(matrix.counts, results.scope)
    table = [*rows(names, columns, args.sort), mean_row(columns)]
    header = ['class', *columns]
    results.out.mkdir(parents=True, exist_ok=True)
    path = results.out / 'per_class.csv'
    with open(path, 'w', newline='', encoding='utf-8') as file:
        csv.writer(file).writerows([header, *table[:-1]])
    text = _bench.markdown(header, [[cell(v) for v in row] for row in table])
    print(f'{images:,} images\n\n{text}\n\nsaved {path}')


if __name__ == '__main__':
    main()
