"""Masks of COCO results: compressed run lengths."""
from typing import Any, Tuple

import numpy as np

from .errors import SubmissionError

ENCODE = ("Encode masks with pycocotools.mask.encode and its counts with "
          ".decode(), as mmdet's CocoMetric does")
_LONGEST = 6
"""Characters of the longest number: 30 bits are more than any image has."""


def run_lengths(counts: str) -> np.ndarray:
    """Decode the run lengths of a mask.

    COCO's format: a number is a group of characters with 5 bits each, from
    the lowest, and a sixth that says whether the group goes on. From the
    fourth on, a number is the difference to the one before the last.

    Args:
        counts (str): The compressed run lengths.

    Returns:
        np.ndarray: int64 of shape (runs, ), pixels of background and object
        in turn, column by column.

    Raises:
        SubmissionError: If they are none.
    """
    # Of what is not in ASCII every byte is above 127.
    codes = np.frombuffer(counts.encode('utf-8', 'surrogatepass'), np.uint8)
    codes = codes.astype(np.int64) - 48
    if not len(codes) or codes.min() < 0 or codes.max() > 63 or codes[-1] & 32:
        raise SubmissionError('counts of the mask are no compressed run '
                              'lengths', ENCODE)
    ends = np.flatnonzero(codes < 32)
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts + 1
    if lengths.max() > _LONGEST:
        raise SubmissionError('counts of the mask hold a run longer than any '
                              'image', ENCODE)
    place = np.arange(len(codes)) - np.repeat(starts, lengths)
    runs = np.add.reduceat((codes & 31) << 5 * place, starts)
    runs -= np.where(codes[ends] & 16, 1 << 5 * lengths, 0)
    runs[1::2] = np.cumsum(runs[1::2])
    runs[2::2] = np.cumsum(runs[2::2])
    return runs


def check_mask(mask: Any, size: Tuple[int, int]) -> int:
    """Check the segmentation of a detection.

    Args:
        mask (Any): What stands there.
        size (tuple[int, int]): Height and width of the image.

    Returns:
        int: Its area in pixels.

    Raises:
        SubmissionError: If it is no compressed mask of that size.
    """
    if isinstance(mask, list):
        raise SubmissionError('segmentation is a list (polygons?), not a mask '
                              'in run lengths', ENCODE)
    if not isinstance(mask, dict) or not {'size', 'counts'} <= mask.keys():
        raise SubmissionError('segmentation is not a dict of size and counts',
                              ENCODE)
    there, counts = mask['size'], mask['counts']
    if there != list(size) or not all(type(side) is int for side in there):
        swapped = there == list(size)[::-1]
        raise SubmissionError(
            f'size of the mask is {there}, of the image {list(size)} (height, '
            'width)', 'Height comes first' if swapped else
            'Masks must be of the size the image has in its file: test with '
            'rescale, the default')
    if isinstance(counts, list):
        raise SubmissionError('counts of the mask are a list, not compressed',
                              ENCODE)
    if not isinstance(counts, str):
        raise SubmissionError(f'counts of the mask are {counts!r}, not a '
                              'string', ENCODE)
    if counts[:2] in ("b'", 'b"'):
        raise SubmissionError('counts of the mask are bytes turned into a '
                              'string with their b and quotes', ENCODE)
    runs = run_lengths(counts)
    if runs.min() < 0 or runs.sum() != size[0] * size[1]:
        raise SubmissionError(
            f'the runs of the mask do not make up the {size[0]} x {size[1]} '
            'pixels of the image', ENCODE)
    return int(runs[1::2].sum())
