"""Check a COCO file and its images, as mmdet reads them."""
import json
import math
import os.path as osp
from collections import Counter, defaultdict

import numpy as np

from .images import images_below, report_images, report_orientation, shown
from .objects import check_object
from .report import SplitReport

_LISTS = ('images', 'annotations', 'categories')


def check_coco(split: SplitReport, dataset, with_mask: bool) -> None:
    """Check a split of detection or instance segmentation.

    Args:
        split (SplitReport): Takes what is found.
        dataset (CocoDataset): Built, but not yet filled.
        with_mask (bool): Whether masks are trained on.
    """
    split.task = 'instance segmentation' if with_mask else 'detection'
    folder = dataset.data_prefix.get('img') or ''
    for path in (dataset.ann_file, folder):
        if not osp.exists(path):
            split.add('folder-missing', path)
    if not osp.isfile(dataset.ann_file):
        return
    name = osp.basename(dataset.ann_file)
    content = _read(split, dataset.ann_file, name)
    if content is None:
        return
    ids = _check_categories(split, name, content['categories'],
                            list(dataset.metainfo['classes']))
    images = _check_image_entries(split, name, content['images'])
    _check_ids(split, name, content['annotations'], images,
               {c.get('id') for c in content['categories']})
    _check_files(split, folder, images, dataset.data_root or '')
    _check_objects(split, content['annotations'], images, ids, with_mask)
    split.pictures = _pictures(content['annotations'], images, ids, folder)


def _read(split, path, name):
    """The content of a COCO file, or None."""
    try:
        with open(path, encoding='utf-8') as file:
            content = json.load(file)
    except (ValueError, OSError) as error:
        split.add('json', name, str(error))
        return None
    lost = [key for key in _LISTS if not isinstance(content, dict)
            or not isinstance(content.get(key), list)]
    if lost:
        split.add('json', name, f'no list {", ".join(lost)}')
        return None
    bad = [key for key in _LISTS
           if not all(_is_entry(entry) for entry in content[key])]
    if bad:
        split.add('json', name, f'{", ".join(bad)} are no objects with ids '
                  'that are numbers or texts')
        return None
    return content


def _is_entry(entry):
    """Whether it is an object whose ids can be looked up."""
    return isinstance(entry, dict) and not any(
        isinstance(entry.get(key), (list, dict))
        for key in ('id', 'image_id', 'category_id', 'name'))


def _check_categories(split, file, categories, classes):
    """Compare categories and classes.

    Returns:
        dict: The class name of each category id that is trained on.
    """
    names = [c.get('name') for c in categories]
    for key in ('id', 'name'):
        seen = Counter(str(c.get(key)) for c in categories)
        for value in (v for v, n in seen.items() if n > 1):
            split.add('category-twice', file, f'{key} {value!r}')
    for name in (n for n in classes if n not in names):
        close = [n for n in names if str(n).strip().lower()
                 == str(name).strip().lower()]
        hint = f'; did you mean {close[0]!r}?' if close else ''
        split.add('category-missing', file,
                  f'no {name!r} among {tuple(names)!r}{hint}')
    kept = tuple(n for n in names if n in classes)
    if set(kept) == set(classes) and list(kept) != classes and len(
            kept) == len(classes):
        split.add('category-order', file, f'write {kept!r}')
    left = tuple(n for n in names if n not in classes)
    if left:
        split.add('category-left-out', file, ', '.join(map(repr, left)))
    if 0 in [c.get('id') for c in categories]:
        split.add('id-0', file, 'category')
    return {c.get('id'): c['name'] for c in categories
            if c.get('name') in classes}


def _check_image_entries(split, file, entries):
    """Check what the file says of images.

    Returns:
        dict: The entry of each image id; the last one counts, as in mmdet.
    """
    for key, code in (('id', 'image-id-twice'),
                      ('file_name', 'file-name-twice')):
        seen = Counter(str(e.get(key)) for e in entries)
        for value in (v for v, n in seen.items() if n > 1):
            split.add(code, file, f'{key} {value}, {seen[value]} times')
    good = {}
    for entry in entries:
        lost = [k for k in ('id', 'file_name', 'width', 'height')
                if entry.get(k) is None]
        if lost:
            split.add('key-missing', file,
                      f'{", ".join(lost)} of image {entry.get("id")}')
            continue
        wrong = [k for k in ('width', 'height') if not (
            isinstance(entry[k], int) and entry[k] > 0)]
        wrong += [] if isinstance(entry['file_name'], str) else ['file_name']
        if wrong:
            values = ', '.join(f'{k} {entry[k]!r}' for k in wrong)
            split.add('value', file, f'{values} of image {entry["id"]}')
            continue
        good[entry['id']] = entry
    if 0 in good:
        split.add('id-0', file, f'image {good[0]["file_name"]}')
    return good


def _check_ids(split, file, annotations, images, categories):
    """Check the ids of annotations and what they point to."""
    seen = Counter(str(a.get('id')) for a in annotations)
    for value in (v for v, n in seen.items() if n > 1):
        split.add('annotation-id-twice', file,
                  f'id {value}, {seen[value]} times')
    if any(a.get('id') == 0 and not isinstance(a.get('id'), bool)
           for a in annotations):
        # Scoring reads the file of the validation alone.
        split.add('annotation-id-0', file,
                  level='note' if split.name == 'train' else None)
    for annotation in annotations:
        what = f'annotation {annotation.get("id")}'
        image, category = (annotation.get(k)
                           for k in ('image_id', 'category_id'))
        if image not in images:
            split.add('annotation-image', file, f'{what}, image {image!r}')
        if category not in categories:
            split.add('annotation-category', file,
                      f'{what}, category {category!r}')


def _check_files(split, folder, images, root):
    """Read the files of images and compare them with their entries."""
    entries = list(images.values())
    paths = [osp.join(folder, e['file_name']) for e in entries]
    for path in (p for p in paths if not osp.isfile(p)):
        split.add('image-missing', shown(path, root))
    there = [(e, p) for e, p in zip(entries, paths) if osp.isfile(p)]
    facts = report_images(split, [path for _, path in there], root)
    for (entry, path), image in zip(there, facts):
        if image.error:
            continue
        size = (entry['width'], entry['height'])
        turned = report_orientation(split, shown(path, root), image, size)
        if size != image.size and not turned:
            split.add(
                'image-size', shown(path, root),
                'the entry says {} x {}, the file has {} x {}'.format(
                    *size, *image.size))
    listed = {osp.normpath(path) for path in paths}
    for name in images_below(folder):
        path = osp.normpath(osp.join(folder, name))
        if path not in listed:
            split.add('image-unlisted', shown(path, root))
    split.images = len(images)


def _check_objects(split, annotations, images, ids, with_mask):
    """Check every object, and count those that are trained on."""
    counts, crowds = Counter(), Counter()
    with_objects, of_class, sides = set(), defaultdict(set), []
    for annotation in annotations:
        entry = images.get(annotation.get('image_id'))
        if entry is None or annotation.get('category_id') not in ids:
            continue
        where = entry['file_name']
        if not check_object(split, where, annotation, entry, with_mask):
            continue
        name = ids[annotation['category_id']]
        if annotation.get('iscrowd'):
            crowds[name] += 1
            continue
        counts[name] += 1
        of_class[name].add(entry['id'])
        with_objects.add(entry['id'])
        sides.append(math.sqrt(annotation['bbox'][2] * annotation['bbox'][3]))
    total = sum(counts.values())
    split.columns = ('class', 'images', 'objects', 'share (%)', 'crowd')
    for name in ids.values():
        split.rows.append((name, len(of_class[name]), counts[name],
                           100 * counts[name] / (total or 1), crowds[name]))
        if not counts[name]:
            split.add('class-unused', name)
    if not total:
        split.add('no-objects', split.name)
    else:
        low, middle, high = np.percentile(sides, [5, 50, 95])
        split.facts['sides of the boxes'] = (
            f'{low:.0f}, {middle:.0f} and {high:.0f} pixels (5, 50 and 95 % '
            'of the boxes are smaller)')
    for key in images:
        if key not in with_objects:
            split.add('image-empty', images[key]['file_name'])


def _pictures(annotations, images, ids, folder):
    """What the contact sheet draws: a path and its objects, each."""
    objects = defaultdict(list)
    for annotation in annotations:
        objects[annotation.get('image_id')].append(annotation)
    return [(osp.join(folder, entry['file_name']), objects[key], ids)
            for key, entry in images.items()
            if osp.isfile(osp.join(folder, entry['file_name']))]
