"""Turn the XML files of Pascal VOC, labelImg and others into a COCO file.

An XML file belongs to the image of the same name. Boxes count pixels from 1
and include their last one, as VOC defines them: xmin 1 and xmax 100 are 100
pixels, bbox [0, ..., 100, ...]. Objects marked "difficult" become crowd
regions: they are neither trained on nor counted as missed, as in mmdet.
"""
import argparse
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

from _files import fail, folder, images_in, size_of, write_coco

CORNERS = ('xmin', 'ymin', 'xmax', 'ymax')


def parse_args():
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('annotations', help='folder of XML files')
    parser.add_argument('images', help='folder of images')
    parser.add_argument('out', help='COCO file to write')
    parser.add_argument(
        '--classes',
        nargs='+',
        help='names in order; others are left out. Default: all names found '
        'in the folder, sorted')
    parser.add_argument(
        '--list',
        help='file with one name a line, without suffix: these XML files '
        'alone, such as ImageSets/Main/train.txt')
    parser.add_argument(
        '--zero-based',
        action='store_true',
        help='pixels are counted from 0, and xmax is where the box ends')
    return parser.parse_args()


def read_xml(path):
    """Read one file.

    Args:
        path (Path): The XML file.

    Returns:
        tuple: Width and height (None where not given) and a list of objects:
        name, the four corners, whether it is difficult.

    Raises:
        SystemExit: If it is no annotation; names what is wrong.
    """
    try:
        root = ElementTree.parse(path).getroot()
        size = [root.find(f'size/{k}') for k in ('width', 'height')]
        size = [None if s is None else int(float(s.text)) for s in size]
        objects = []
        for item in root.iter('object'):
            corners = [float(item.find(f'bndbox/{k}').text) for k in CORNERS]
            difficult = item.findtext('difficult', '0').strip() == '1'
            objects.append((item.find('name').text.strip(), corners,
                            difficult))
    except (ElementTree.ParseError, AttributeError, TypeError,
            ValueError) as error:
        fail(f'{path} is no VOC annotation: each object needs a name and a '
             f'bndbox with {", ".join(CORNERS)} ({error})')
    return size, objects


def to_bbox(corners, size, zero_based):
    """A box of COCO, cut to the image.

    Args:
        corners (list[float]): As in the XML file.
        size (tuple[int]): Width and height of the image.
        zero_based (bool): Whether they count from 0.

    Returns:
        tuple: ``[x, y, width, height]``, None if nothing is left, and
        whether it was cut.
    """
    left, top, right, bottom = corners
    if not zero_based:
        left, top = left - 1, top - 1
    inside = (max(left, 0), max(top, 0), min(right, size[0]),
              min(bottom, size[1]))
    cut = inside != (left, top, right, bottom)
    box = [inside[0], inside[1], inside[2] - inside[0], inside[3] - inside[1]]
    if box[2] < 1 or box[3] < 1:
        return None, cut
    return [int(v) if v == int(v) else v for v in box], cut


def chosen_files(args):
    """The XML files to convert, and all of them."""
    there = sorted(folder(args.annotations).glob('*.xml'))
    if not there:
        fail(f'{args.annotations} holds no .xml files')
    if not args.list:
        return there, there
    if not Path(args.list).is_file():
        fail(f'there is no file {args.list}')
    # Lists of VOC for one class have a second column.
    names = [line.split()[0] for line in Path(args.list).read_text(
        encoding='utf-8').splitlines() if line.strip()]
    by_name = {path.stem: path for path in there}
    lost = [name for name in names if name not in by_name]
    if lost:
        fail(f'{args.list} names {len(lost)} files that '
             f'{args.annotations} lacks: {", ".join(lost[:5])}')
    return [by_name[name] for name in names], there


def convert(files, classes, pictures, args):
    """Make the entries of a COCO file.

    Args:
        files (dict[Path, tuple]): What :func:`read_xml` read, by file.
        classes (list[str]): Names in order.
        pictures (dict[str, Path]): Images by name.
        args (argparse.Namespace): The command line.

    Returns:
        tuple: Images, annotations, and numbers of what is worth a note.
    """
    images, annotations, notes = [], [], Counter()
    for number, (path, (given, objects)) in enumerate(files.items(), 1):
        picture = pictures.get(path.stem)
        if picture is None:
            fail(f'{path} has no image {path.stem}.* in {args.images}')
        size = size_of(picture)
        if tuple(given) not in (size, (None, None), (0, 0)):
            fail(f'{path} is for an image of {given} pixels, but {picture} '
                 f'has {list(size)}: its boxes do not fit')
        images.append(
            dict(
                id=number,
                file_name=picture.relative_to(args.images).as_posix(),
                width=size[0],
                height=size[1]))
        for name, corners, difficult in objects:
            bbox, cut = to_bbox(corners, size, args.zero_based)
            notes['boxes cut to the image'] += cut and bbox is not None
            notes['boxes that begin at 0'] += min(corners) == 0
            notes['boxes left out: nothing of them is in the image'] += (
                bbox is None)
            notes['objects of other classes left out'] += name not in classes
            if bbox is None or name not in classes:
                continue
            notes['difficult objects, now crowd'] += difficult
            annotations.append(
                dict(
                    image_id=number,
                    category_id=classes.index(name) + 1,
                    bbox=bbox,
                    area=bbox[2] * bbox[3],
                    iscrowd=int(difficult)))
    return images, annotations, notes


def main():
    """Convert."""
    args = parse_args()
    files, there = chosen_files(args)
    read = {path: read_xml(path) for path in there}
    found = {name for _, objects in read.values() for name, _, _ in objects}
    classes = args.classes or sorted(found)
    lost = [name for name in classes if name not in found]
    if lost:
        fail(f'no object is named {", ".join(lost)}. Names in '
             f'{args.annotations}: {", ".join(sorted(found)) or "none"}')
    images, annotations, notes = convert({path: read[path] for path in files},
                                         classes, images_in(args.images), args)
    write_coco(args.out, images, annotations, classes)
    if not args.classes:
        print('(the classes are sorted by name; --classes sets their order)')
    for what, count in notes.items():
        if count:
            print(f'note: {count:,} {what}')
    if notes['boxes that begin at 0'] and not args.zero_based:
        print('note: VOC counts from 1. If your tool counts from 0, use '
              '--zero-based')


if __name__ == '__main__':
    main()
