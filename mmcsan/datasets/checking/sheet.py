"""Contact sheets: images of a split under their annotations, with a legend.
"""
from typing import List, Sequence

import mmcv
import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps
from pycocotools import mask as mask_utils

from .objects import to_rle
from .report import SplitReport

_TILE = 320
_GAP = 8
_LINE = 22
_TEXT = 14
_OPACITY = 0.45
_GREY = (128, 128, 128)
_ALARM = (255, 0, 255)
_PLAIN = 'background'
"""The class that is shown by the absence of colour."""
_BY_FAULT = {
    'mask-values': ('no class (striped)', _ALARM),
    'crowd': ('crowd', _GREY)
}
"""Entries of the legend that only such a fault needs."""


def colours(number: int) -> List[tuple]:
    """Colours that differ in hue, and from black and white.

    Args:
        number (int): How many.

    Returns:
        list[tuple[int]]: Red, green and blue, 0 to 255.
    """
    # Steps of the golden ratio leave no two hues close together.
    hsv = [(int(255 * (0.02 + 0.618034 * i) % 255), 230 - 60 * (i // 8 % 2),
            250 - 70 * (i // 16 % 2)) for i in range(number)]
    return [Image.new('HSV', (1, 1), c).convert('RGB').getpixel((0, 0))
            for c in hsv]


def contact_sheet(split: SplitReport, most: int = 12) -> Image.Image:
    """Draw images of a split with what is annotated on them.

    Args:
        split (SplitReport): A checked split.
        most (int): Images at most; they are taken evenly. Defaults to 12.

    Returns:
        PIL.Image.Image: The sheet, None if there is nothing to draw.
    """
    if not split.pictures:
        return None
    names = [row[0] for row in split.rows if row[0] != '(not judged)']
    palette = dict(zip(names, colours(len(names))))
    chosen = np.unique(
        np.linspace(0, len(split.pictures) - 1, most).round().astype(int))
    draw = (_semantic_tile if split.task == 'semantic segmentation' else
            _object_tile)
    tiles = []
    for index in chosen:
        try:
            tile = draw(split.pictures[index], palette)
        except Exception:  # noqa: B902  broken ones are in the report
            continue
        tiles.append((tile, split.pictures[index][0]))
    return _arrange(tiles, palette, split) if tiles else None


def _load(path):
    """An image as training sees it, as a tile."""
    image = Image.fromarray(mmcv.imread(path, channel_order='rgb'))
    scale = _TILE / max(image.size)
    size = [max(round(side * scale), 1) for side in image.size]
    return image.resize(size, Image.BILINEAR), scale


def _semantic_tile(picture, palette):
    """An image under the colours of its mask; stripes where there is none."""
    path, mask_path, labels = picture
    image, _ = _load(path)
    with Image.open(mask_path) as file:
        values = np.asarray(file)
    table = np.zeros((256, 3), np.uint8)
    plain = []
    for value in filter(labels.is_class, range(256)):
        name = list(palette)[labels.table[value]]
        table[value] = palette[name]
        if name == _PLAIN:
            plain.append(value)
    seen = Image.fromarray(table[values & 255]).resize(image.size,
                                                       Image.NEAREST)
    tile = np.asarray(Image.blend(image, seen, _OPACITY)).copy()
    untouched = _resized(np.isin(values, plain), image.size)
    tile[untouched] = np.asarray(image)[untouched]
    rows, columns = np.indices(tile.shape[:2])
    stripes = (rows + columns) % 8 < 3
    void = [v for v in range(256) if labels.is_void(v)]
    known = void + [v for v in range(256) if labels.is_class(v)]
    tile[stripes & _resized(np.isin(values, void), image.size)] = _GREY
    tile[stripes & ~_resized(np.isin(values, known), image.size)] = _ALARM
    return Image.fromarray(tile)


def _object_tile(picture, palette):
    """An image with the boxes and masks of its objects."""
    path, objects, ids = picture
    image, scale = _load(path)
    tile = np.asarray(image).astype(np.float32)
    objects = [o for o in objects if o.get('category_id') in ids]
    for item in objects:
        mask = _mask(item, image.size, path)
        if mask is not None:
            colour = np.float32(palette[ids[item['category_id']]])
            tile[mask] = (1 - _OPACITY) * tile[mask] + _OPACITY * colour
    image = Image.fromarray(tile.astype(np.uint8))
    pen = ImageDraw.Draw(image)
    for item in objects:
        x, y, width, height = (scale * v for v in item['bbox'])
        colour = _GREY if item.get('iscrowd') else palette[
            ids[item['category_id']]]
        if width >= 0 and height >= 0:
            pen.rectangle((x, y, x + width, y + height), outline=colour)
    return image


def _mask(item, size, path):
    """The mask of an object in the size of the tile, or None."""
    if not item.get('segmentation'):
        return None
    with Image.open(path) as file:
        width, height = ImageOps.exif_transpose(file).size
    try:
        mask = mask_utils.decode(to_rle(item['segmentation'], height, width))
    except Exception:  # noqa: B902  broken ones are in the report
        return None
    return _resized(mask > 0, size)


def _resized(bitmap, size):
    """A bitmap in the size of the tile."""
    return np.asarray(Image.fromarray(bitmap).resize(size, Image.NEAREST))


def _arrange(tiles: Sequence, palette, split) -> Image.Image:
    """Put tiles in rows, names below them, and the legend at the bottom."""
    columns = min(4, len(tiles))
    rows = -(-len(tiles) // columns)
    width = columns * (_TILE + _GAP) + _GAP
    cell = max(tile.height for tile, _ in tiles) + _LINE + _GAP
    legend = _legend(palette, split, width)
    sheet = Image.new('RGB', (width, rows * cell + _GAP + legend.height),
                      'white')
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(_TEXT)
    for index, (tile, path) in enumerate(tiles):
        row, column = divmod(index, columns)
        x = _GAP + column * (_TILE + _GAP)
        y = _GAP + row * cell
        sheet.paste(tile, (x, y))
        pen.text((x, y + tile.height + 2), path.rsplit('/', 1)[-1][:44],
                 'black', font)
    sheet.paste(legend, (0, rows * cell + _GAP))
    return sheet


def _legend(palette, split, width) -> Image.Image:
    """One colour and name a class, in as many lines as it takes."""
    font = ImageFont.load_default(_TEXT)
    entries = [(f'{n} (not tinted)' if n == _PLAIN else n, c)
               for n, c in palette.items()]
    if len(split.rows) > len(palette):
        entries.append(('not judged (striped)', _GREY))
    codes = {fault.code for fault in split.faults}
    entries += [entry for code, entry in _BY_FAULT.items() if code in codes]
    places, x, y = [], _GAP, 0
    for name, colour in entries:
        length = 24 + round(font.getlength(str(name))) + 16
        if x + length > width and x > _GAP:
            x, y = _GAP, y + _LINE
        places.append((x, y, name, colour))
        x += length
    legend = Image.new('RGB', (width, y + _LINE + _GAP), 'white')
    pen = ImageDraw.Draw(legend)
    for x, y, name, colour in places:
        pen.rectangle((x, y + 3, x + 16, y + 17), colour)
        pen.text((x + 22, y + 2), str(name), 'black', font)
    return legend
