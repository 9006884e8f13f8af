"""From a config to the checks of the data sets that it describes."""
import contextlib
import inspect
import io
import os.path as osp
from typing import Iterable, Iterator, List, Tuple

from mmengine.config import Config
from mmengine.registry import init_default_scope

from .images import find_leaks
from .report import Report, SplitReport

SPLITS = ('train', 'val', 'test')
_HEADS = ('decode_head', 'auxiliary_head', 'bbox_head', 'mask_head')
# Of data set classes and of the files that they read.
_REFUSALS = (ValueError, TypeError, AssertionError, KeyError, IndexError,
             OSError)


def check_config(cfg: Config, splits: Iterable[str] = ('train', 'val'),
                 name: str = '') -> Report:
    """Read all data that a config describes, and note what is wrong.

    Args:
        cfg (Config): Of mmseg or mmdet; see :data:`SPLITS` for the loaders.
        splits (Iterable[str]): Which of them. Defaults to train and val.
        name (str): Name of the config in the report.

    Returns:
        Report: The findings.

    Raises:
        ValueError: If the config has no such loader, or describes data of
            another kind.
    """
    init_default_scope(cfg.get('default_scope', 'mmengine'))
    report = Report(name or str(cfg.filename))
    roots = []
    for key in splits:
        loader = cfg.get(f'{key}_dataloader')
        if not loader:
            raise ValueError(f'the config has no {key}_dataloader')
        for index, settings in enumerate(_leaves(loader['dataset'])):
            split = SplitReport(key if index == 0 else f'{key}.{index}')
            report.splits.append(split)
            roots.append(settings.get('data_root') or '')
            _check_split(split, cfg, settings)
    for first in report.splits:
        for second, root in zip(report.splits, roots):
            if (first.name.split('.')[0] == 'train'
                    and second.name.split('.')[0] != 'train'):
                find_leaks(first, second, root)
    return report


def _leaves(settings) -> Iterator[dict]:
    """The data sets inside of wrappers such as RepeatDataset."""
    if 'datasets' in settings:
        for part in settings['datasets']:
            yield from _leaves(part)
    elif 'dataset' in settings:
        yield from _leaves(settings['dataset'])
    else:
        yield settings


def _registry(scope):
    if scope == 'mmseg':
        from mmseg.registry import DATASETS
    elif scope == 'mmdet':
        from mmdet.registry import DATASETS
    else:
        raise ValueError(f'default_scope of the config is {scope!r}: data '
                         'sets of mmseg and mmdet can be checked')
    return DATASETS


def _kind(scope, cls):
    """The check of a class of data sets."""
    if scope == 'mmseg':
        from mmseg.datasets import BaseSegDataset

        from .semantic import check_semantic
        if issubclass(cls, BaseSegDataset):
            return check_semantic
    else:
        from mmdet.datasets import CocoDataset

        from .coco import check_coco
        if issubclass(cls, CocoDataset):
            return check_coco
    raise ValueError(
        f'{cls.__name__} cannot be checked: BaseSegDataset of mmseg and '
        'CocoDataset of mmdet can. tools/dataset/voc2coco.py turns VOC XML '
        'into a COCO file')


def _check_split(split, cfg, settings):
    """Check one data set."""
    scope = cfg.get('default_scope')
    registry = _registry(scope)
    settings = settings.to_dict() if hasattr(settings, 'to_dict') else dict(
        settings)
    pipeline = settings.pop('pipeline', [])
    cls = settings['type']
    cls = cls if inspect.isclass(cls) else registry.get(cls)
    if cls is None:
        raise ValueError(f'there is no data set class {settings["type"]}')
    check = _kind(scope, cls)
    try:
        dataset = registry.build(
            dict(settings, pipeline=[], lazy_init=True))
    except _REFUSALS as error:
        split.add('config', settings['type'], _first_line(error))
        return
    if not _check_classes(split, cfg, dataset):
        return
    if scope == 'mmseg':
        check(split, dataset, pipeline, _ignore_index(cfg))
    else:
        check(split, dataset, _with_mask(pipeline))
    _count_used(split, dataset)


def _check_classes(split, cfg, dataset) -> bool:
    """Whether the classes make sense; notes if not."""
    classes = dataset.metainfo.get('classes')
    if isinstance(classes, str):
        split.add('classes-text', split.name, f'classes = {classes!r}')
        return False
    if not classes:
        split.add('config', split.name, 'metainfo has no classes')
        return False
    if cfg.get('default_scope') == 'mmseg' and len(classes) < 2:
        split.add('classes-few', split.name, f'classes = {tuple(classes)!r}')
    for path, number in _heads(cfg.get('model') or {}):
        if number != len(classes):
            split.add('classes-heads', path,
                      f'{number}, but there are {len(classes)} classes')
    return True


def _heads(model, path='model') -> List[Tuple[str, int]]:
    """Each head of a model and its number of classes."""
    found = []
    if isinstance(model, (list, tuple)):
        for index, part in enumerate(model):
            found += _heads(part, f'{path}.{index}')
    elif isinstance(model, dict):
        inside = any(part in _HEADS for part in path.split('.'))
        if inside and isinstance(model.get('num_classes'), int):
            found.append((path, model['num_classes']))
        for key, part in model.items():
            found += _heads(part, f'{path}.{key}')
    return found


def _ignore_index(cfg) -> int:
    """What the loss of a segmentor leaves out."""
    head = (cfg.get('model') or {}).get('decode_head') or {}
    head = head[-1] if isinstance(head, (list, tuple)) else head
    index = head.get('ignore_index', 255)
    return 255 if index is None else index


def _with_mask(pipeline) -> bool:
    return any(
        str(step.get('type')).endswith('LoadAnnotations')
        and step.get('with_mask') for step in pipeline)


def _count_used(split, dataset):
    """Let the data set class itself say what it keeps."""
    if split.count('error'):
        return
    dataset.serialize_data = False  # it would go through all of the memory
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # pycocotools talks
            dataset.full_init()
        split.used = len(dataset)
    except _REFUSALS as error:
        split.add('config', osp.basename(type(dataset).__name__),
                  _first_line(error))


def _first_line(error) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
