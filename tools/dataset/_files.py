"""What the converters share: images by name, sizes, files written."""
import json
from pathlib import Path

from PIL import Image, ImageOps

SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp')


def fail(message):
    """Stop with a message for the person at the prompt, no traceback.

    Args:
        message (str): What is wrong and how to cure it.

    Raises:
        SystemExit: Always.
    """
    raise SystemExit(f'error: {message}')


def folder(path):
    """A folder that must be there.

    Args:
        path (str): Where.

    Returns:
        Path: The folder.
    """
    path = Path(path)
    if not path.is_dir():
        fail(f'there is no folder {path}')
    return path


def images_in(path):
    """All images in a folder and below.

    Args:
        path (str | Path): The folder.

    Returns:
        dict[str, Path]: By name relative to the folder without the suffix,
        in alphabetic order.

    Raises:
        SystemExit: If two differ in their suffix alone, or there are none.
    """
    path = folder(path)
    found = {}
    for file in sorted(path.rglob('*')):
        if file.suffix.lower() not in SUFFIXES or file.name.startswith('.'):
            continue
        name = file.relative_to(path).with_suffix('').as_posix()
        if name in found:
            fail(f'{found[name]} and {file} differ in their suffix alone: '
                 'remove one')
        found[name] = file
    if not found:
        fail(f'{path} holds no images ({", ".join(SUFFIXES)})')
    return found


def size_of(path):
    """Width and height of an image, upright as training sees it.

    Args:
        path (Path): The image.

    Returns:
        tuple[int]: Width, height.
    """
    try:
        with Image.open(path) as image:
            turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)
            return image.size[::-1] if turned else image.size
    except OSError as error:
        fail(f'{path} cannot be read: {error}')


def read_values(path):
    """The values of a mask: indices of a palette, not its colours.

    Args:
        path (Path): The mask.

    Returns:
        PIL.Image.Image: Loaded, upright.
    """
    try:
        with Image.open(path) as image:
            image.load()
            return ImageOps.exif_transpose(image)
    except OSError as error:
        fail(f'{path} cannot be read: {error}')


def write_coco(path, images, annotations, classes):
    """Write a COCO file; the same input gives the same bytes.

    Args:
        path (str | Path): The file.
        images (list[dict]): Entries.
        annotations (list[dict]): Entries; their ids are set here, from 1.
        classes (Sequence[str]): Names of the categories in order.
    """
    for number, annotation in enumerate(annotations, 1):
        annotation['id'] = number
    write_json(
        path,
        dict(
            images=images,
            annotations=annotations,
            categories=[
                dict(id=number, name=name)
                for number, name in enumerate(classes, 1)
            ]))
    print(f'{path}: {len(images):,} images, {len(annotations):,} objects')
    print(f'classes = {tuple(classes)!r}')


def write_json(path, content):
    """Write a JSON file, whole or not at all.

    Args:
        path (str | Path): The file; folders on the way are made.
        content (object): What it holds.
    """
    write_text(path, json.dumps(content) + '\n')


def write_text(path, text):
    """Write a file, whole or not at all.

    Args:
        path (str | Path): The file; folders on the way are made.
        text (str): What it holds.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f'.{path.name}.partial')
    partial.write_text(text, encoding='utf-8')
    partial.replace(path)
