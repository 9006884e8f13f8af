"""Divide a data set into training and validation; nothing is copied.

    split.py instances.json --out data/mine
        writes instances_train.json and instances_val.json
    split.py data/mine/images --out data/mine
        writes train.txt and val.txt, names without suffix: the lists of the
        semantic config, and of voc2coco.py --list

Copies of one image (files of the same bytes) stay on one side.
"""
import argparse
import hashlib
import json
import random
from pathlib import Path

from _files import fail, images_in, write_json, write_text


def parse_args():
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('source', help='COCO file, or folder of images')
    parser.add_argument(
        '--out', help='folder to write. Default: beside the source')
    parser.add_argument(
        '--val',
        type=float,
        default=0.2,
        help='share of the images for validation, or their number if it is '
        '1 or more. Default: 0.2')
    parser.add_argument(
        '--seed', type=int, default=0, help='of the draw. Default: 0')
    parser.add_argument(
        '--images',
        help='of a COCO file: folder of its images, to keep copies together')
    return parser.parse_args()


def divide(groups, wanted, seed):
    """Draw the validation part.

    Args:
        groups (list[list]): What stays together.
        wanted (int): Size of the part.
        seed (int): Of the draw.

    Returns:
        set: Members of the part; a few less where groups do not fit.
    """
    chosen = []
    random.Random(seed).shuffle(groups)
    for group in groups:
        if len(chosen) + len(group) <= wanted:
            chosen += group
    return set(chosen)


def grouped(names, path_of):
    """Put names whose files are the same together."""
    groups = {}
    for name in names:
        path = path_of(name)
        if path is not None and not path.is_file():
            fail(f'there is no image {path}')
        key = name if path is None else hashlib.sha1(
            path.read_bytes()).hexdigest()
        groups.setdefault(key, []).append(name)
    return list(groups.values())


def number_of(val, count):
    """How many images the validation gets."""
    wanted = round(val if val >= 1 else val * count)
    if not 1 <= wanted < count:
        fail(f'--val {val:g} of {count} images is {wanted}: both parts need '
             'one at least')
    return wanted


def split_coco(source, args):
    """Write two COCO files."""
    try:
        content = json.loads(source.read_text(encoding='utf-8'))
        names = {i['id']: i['file_name'] for i in content['images']}
        owners = [a['image_id'] for a in content['annotations']]
    except (ValueError, KeyError, TypeError) as error:
        fail(f'{source} is no COCO file ({error})')
    if len(names) < len(content['images']):
        fail(f'{source} has image ids more than once: see '
             'tools/dataset/check.py')
    lost = set(owners) - set(names)
    if lost:
        fail(f'{source} has objects of images that it does not list, such '
             f'as {sorted(lost, key=str)[0]}: see tools/dataset/check.py')
    groups = grouped(
        names, lambda i: args.images and Path(args.images, names[i]) or None)
    val = divide(groups, number_of(args.val, len(names)), args.seed)
    for part in ('train', 'val'):
        images = [i for i in content['images']
                  if (i['id'] in val) == (part == 'val')]
        kept = {i['id'] for i in images}
        path = Path(args.out or source.parent, f'{source.stem}_{part}.json')
        write_json(
            path,
            dict(
                content,
                images=images,
                annotations=[
                    a for a in content['annotations'] if a['image_id'] in kept
                ]))
        print(f'{path}: {len(images):,} images')


def split_folder(source, args):
    """Write two lists of names."""
    images = images_in(source)
    suffixes = {path.suffix for path in images.values()}
    if len(suffixes) > 1:
        print(f'note: suffixes {", ".join(sorted(suffixes))}; a config of '
              'semantic segmentation reads one')
    groups = grouped(images, images.get)
    val = divide(groups, number_of(args.val, len(images)), args.seed)
    for part in ('train', 'val'):
        names = [n for n in images if (n in val) == (part == 'val')]
        path = Path(args.out or source.parent, f'{part}.txt')
        write_text(path, '\n'.join(names) + '\n')
        print(f'{path}: {len(names):,} images')


def main():
    """Split."""
    args = parse_args()
    source = Path(args.source)
    if source.is_dir():
        split_folder(source, args)
    elif source.is_file():
        split_coco(source, args)
    else:
        fail(f'there is neither a file nor a folder {source}')


if __name__ == '__main__':
    main()
