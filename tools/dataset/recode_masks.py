"""Write masks anew, with other values: 0/255 or colours to class numbers.

    recode_masks.py MASKS OUT --map 0=0 255=1
    recode_masks.py MASKS OUT --map 0,0,0=0 128,64,128=1 70,70,70=2 --other 255
"""
import argparse
from pathlib import Path

import numpy as np
from _files import fail, images_in, read_values
from PIL import Image


def rule(text):
    """One exchange of the command line.

    Args:
        text (str): ``old=new``; old is a number or red,green,blue.

    Returns:
        tuple: A tuple of one or three numbers, and the new one.
    """
    try:
        old, new = text.split('=')
        old, new = tuple(map(int, old.split(','))), int(new)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f'{text!r} is not like 255=1 or 128,64,128=1') from None
    if len(old) not in (1, 3) or not 0 <= new <= 255:
        raise argparse.ArgumentTypeError(
            f'{text!r}: one number or three before "=", 0 to 255 behind it')
    return old, new


def parse_args():
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('masks', help='folder of masks')
    parser.add_argument('out', help='folder of new ones: PNG, 8 bits')
    parser.add_argument(
        '--map',
        nargs='+',
        type=rule,
        required=True,
        metavar='OLD=NEW',
        help='what becomes of a value, or of a colour')
    parser.add_argument(
        '--other',
        type=int,
        choices=range(256),
        metavar='NEW',
        help='what becomes of all others. Default: they are an error')
    return parser.parse_args()


def pixels_of(path, colours):
    """The mask as one number a pixel.

    Args:
        path (Path): The mask.
        colours (bool): Whether colours are exchanged.

    Returns:
        np.ndarray: int64 of shape (H, W); of a colour, its three bytes.
    """
    image = read_values(path)
    if colours:
        # (H, W, 3)
        rgb = np.asarray(image.convert('RGB')).astype(np.int64)
        return rgb @ [65536, 256, 1]
    values = np.asarray(image).astype(np.int64)
    if values.ndim == 2:
        return values
    if values.shape[-1] >= 3 and (values[..., :3]
                                  == values[..., :1]).all():
        return values[..., 0]
    fail(f'{path} holds colours: write --map red,green,blue=class')


def main():
    """Recode."""
    args = parse_args()
    out = Path(args.out)
    if out.resolve() == Path(args.masks).resolve():
        fail('the new masks go to another folder: name one as OUT')
    kinds = {len(old) for old, _ in args.map}
    if len(kinds) > 1:
        fail('--map takes numbers or colours, not both')
    colours = kinds == {3}
    table = {old[0] if len(old) == 1 else int(np.dot(old, [65536, 256, 1])):
             new for old, new in args.map}
    masks = images_in(args.masks)
    for name, path in masks.items():
        pixels = pixels_of(path, colours)
        new = np.full(pixels.shape, args.other or 0, np.uint8)
        for old, value in table.items():
            new[pixels == old] = value
        others = set(np.unique(pixels).tolist()) - set(table)
        if others and args.other is None:
            shown = [tuple(v.to_bytes(3, 'big')) if colours else v
                     for v in sorted(others)]
            fail(f'{path} holds {", ".join(map(str, shown[:8]))}, which --map '
                 'does not name; --other 255 makes them not judged')
        target = out / f'{name}.png'
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(new).save(target)
    print(f'{out}: {len(masks):,} masks')


if __name__ == '__main__':
    main()
