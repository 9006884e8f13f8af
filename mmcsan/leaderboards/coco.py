"""Results for COCO's test-dev server: checked and packed in one pass."""
import json
import re
import zipfile
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Optional, Set, Tuple, Union

import numpy as np

from .coco_masks import check_mask
from .errors import SubmissionError
from .json_stream import iter_array
from .packing import check_name, new_zip

GEOMETRY = {'bbox': 'bbox', 'segm': 'segmentation'}
"""Of each kind of results the entry that tells where an object is."""
TEST_SETS = ('test-dev2017', 'val2017')
"""What may be handed in; the second is for trying out."""
MAX_DETECTIONS = 100
"""Of an image: what COCO scores."""
TOLERANCE = 1.
"""Pixels by which a box may leave its image: rounding."""
LIMIT_MB = 1000.
"""Of the json. The server's own limit is not published; users have seen it
fail on 1.2 GB."""
MAX_EMPTY = 0.1
"""Share of images without a detection above which a test looks cut short."""
SCORES = [step / 1000 for step in range(1001)]
"""What is tried where a file is too large."""


@dataclass
class TestSet:
    """What is known of the images to detect in.

    Args:
        name (str): Such as ``test-dev2017``.
        sizes (dict): Height and width of each image id.
        categories (frozenset): The category ids.
    """

    name: str
    sizes: Dict[int, Tuple[int, int]]
    categories: frozenset


@dataclass
class Summary:
    """What was packed.

    Args:
        kind (str): 'bbox' or 'segm'.
        path (Path, optional): The zip file.
        images (int): Number of images of the test set.
        per_image (Counter): Detections of each image id that has any.
        degenerate (int): Boxes or masks without an area; they can only be
            wrong.
        left_out (int): Detections below the lowest score asked for.
        size (int): Bytes of the json.
    """

    kind: str
    path: Optional[Path] = None
    images: int = 0
    per_image: Counter = field(default_factory=Counter)
    degenerate: int = 0
    left_out: int = 0
    size: int = 0

    def __str__(self) -> str:
        count = sum(self.per_image.values())
        lines = [
            f'{self.kind}: {count:,} detections in {len(self.per_image):,} of '
            f'{self.images:,} images, {self.size / 1e6:.1f} MB of json',
        ]
        if self.left_out:
            lines.append(f'left out for their scores: {self.left_out:,}')
        if self.degenerate:
            lines.append(f'without an area, so that they can only be wrong: '
                         f'{self.degenerate:,}')
        return '\n'.join([*lines, f'written to {self.path}'])


def read_test_set(path: Union[str, Path]) -> TestSet:
    """Read images and categories of a test set.

    Args:
        path (str | Path): ``image_info_test-dev2017.json``, or the
            annotations of the validation set.

    Returns:
        TestSet: What it holds.

    Raises:
        SubmissionError: If it is no such file.
    """
    path = Path(path)
    match = re.fullmatch(r'(?:image_info|instances)_([\w-]+)', path.stem)
    if not match or match[1] not in TEST_SETS:
        raise SubmissionError(
            f'is not of one of the sets {", ".join(TEST_SETS)}',
            'Give image_info_test-dev2017.json, or instances_val2017.json to '
            'try out', path)
    try:
        data = json.loads(path.read_text('utf-8'))
        sizes = {i['id']: (i['height'], i['width']) for i in data['images']}
        categories = frozenset(c['id'] for c in data['categories'])
    except OSError as e:
        raise SubmissionError(
            f'cannot be read ({e.strerror})',
            'It is in image_info_test2017.zip of the COCO site',
            path) from None
    except (ValueError, KeyError, TypeError):
        raise SubmissionError('lists no images and categories of COCO',
                              'Fetch it anew', path) from None
    if not sizes or not categories:
        raise SubmissionError('lists no images or no categories',
                              'Fetch it anew', path)
    return TestSet(match[1], sizes, categories)


def _name(value: Any) -> str:
    """A value and its type, for an error."""
    text = json.dumps(value)
    return f'{text[:60]} ({type(value).__name__})'


def _check_ids(entry: dict, test_set: TestSet) -> None:
    image, category = entry['image_id'], entry['category_id']
    for key, value in (('image_id', image), ('category_id', category)):
        if type(value) is not int:  # a bool is none
            raise SubmissionError(f'{key} is {_name(value)}, not an integer',
                                  'Write the numbers of the annotation file')
    if image not in test_set.sizes:
        raise SubmissionError(
            f'image_id {image} is none of {test_set.name}',
            'Test with the annotation file that is given here: the config '
            'may test on another set')
    if category not in test_set.categories:
        count = len(test_set.categories)
        raise SubmissionError(
            f'category_id {category} is none of the {count} of COCO, which '
            f'go from {min(test_set.categories)} to '
            f'{max(test_set.categories)} with gaps',
            f'Write the ids of the annotation file, not the labels 0 to '
            f'{count - 1} or 1 to {count}' if 0 <= category <= count else
            'Train and test with the classes of COCO')


def _check_score(score: Any) -> None:
    if type(score) not in (int, float):
        raise SubmissionError(f'score is {_name(score)}, not a number',
                              'Write scores as numbers from 0 to 1')
    if not 0 <= score <= 1:  # nor NaN
        raise SubmissionError(
            f'score is {score}, not in 0 to 1', 'Write scores behind sigmoid '
            'or softmax; if they are NaN, so are the weights')


def _check_box(box: Any, size: Tuple[int, int]) -> float:
    """Check a box; its area in pixels."""
    if (not isinstance(box, list) or len(box) != 4
            or any(type(value) not in (int, float) for value in box)):
        raise SubmissionError(f'bbox is {_name(box)}, not four numbers',
                              'Write [x, y, width, height]')
    if not all(abs(value) < 1e9 for value in box):
        raise SubmissionError(f'bbox is {box}, which is not finite',
                              'Look for NaN in the weights')
    x, y, width, height = box
    if width < 0 or height < 0:
        raise SubmissionError(f'bbox is {box}, of negative size',
                              'Write [x, y, width, height]')
    if (min(x, y) < -TOLERANCE or x + width > size[1] + TOLERANCE
            or y + height > size[0] + TOLERANCE):
        corners = 0 <= x <= width <= size[1] and 0 <= y <= height <= size[0]
        raise SubmissionError(
            f'bbox {box} leaves its image, which is {size[1]} wide and '
            f'{size[0]} high',
            'Write [x, y, width, height]; these look like two corners'
            if corners else 'Boxes must be scaled back to the image as it is '
            'in its file and clipped to it')
    return width * height


def _check(entry: Any, kind: str, test_set: TestSet) -> float:
    """Check a detection; its area in pixels."""
    where = GEOMETRY[kind]
    if not isinstance(entry, dict):
        raise SubmissionError(f'is {_name(entry)}, not a detection',
                              'Give the file that CocoMetric writes')
    for key in ('image_id', 'category_id', 'score', where):
        if key not in entry:
            raise SubmissionError(
                f'has no {key}', 'A detection has image_id, category_id, '
                f'score and {where}')
    if kind == 'bbox' and 'segmentation' in entry:
        raise SubmissionError('holds masks in a file of boxes',
                              'Call a file with masks NAME.segm.json')
    _check_ids(entry, test_set)
    _check_score(entry['score'])
    check = _check_box if kind == 'bbox' else check_mask
    return check(entry[where], test_set.sizes[entry['image_id']])


class _Packer:
    """Takes in detections one after the other."""

    def __init__(self, kind: str, test_set: TestSet, limit: float) -> None:
        self.kind, self.test_set, self.limit = kind, test_set, limit
        self.keys = ('image_id', 'category_id', GEOMETRY[kind], 'score')
        self.summary = Summary(kind, images=len(test_set.sizes))
        self.seen: Set[int] = set()
        self.bytes_of = np.zeros(len(SCORES))

    def encode(self, entry: dict, area: float) -> bytes:
        """Count a checked detection in and encode what is scored of it.

        The box of a mask is left out: COCO's code would take its area for
        that of the mask, and so does mmdet where it scores itself.
        """
        image, summary = entry['image_id'], self.summary
        summary.per_image[image] += 1
        if summary.per_image[image] > MAX_DETECTIONS:
            raise SubmissionError(
                f'is one more than {MAX_DETECTIONS} detections of image '
                f'{image}', 'Set max_per_img=100 in test_cfg of the model')
        text = json.dumps({key: entry[key] for key in self.keys},
                          separators=(',', ':'))
        if area:
            if hash(text) in self.seen:
                raise SubmissionError(
                    f'is the same as an earlier detection of image {image}',
                    'The image was tested twice, or files were joined: test '
                    'once')
            self.seen.add(hash(text))
        else:
            summary.degenerate += 1
        size = len(text) + 2  # with what separates it
        summary.size += size
        self.bytes_of[bisect_right(SCORES, entry['score']) - 1] += size
        return text.encode()

    def check_all(self, max_empty: float) -> None:
        """Check what only shows at the end."""
        summary = self.summary
        if not summary.per_image:
            raise SubmissionError(
                'holds no detection', 'Lower the scores asked for: score_thr '
                'in test_cfg of the model, --score-thr here')
        if summary.size > self.limit:
            above = np.cumsum(self.bytes_of[::-1])[::-1]
            # The last is tried in any case.
            enough = SCORES[min(np.sum(above > self.limit), len(SCORES) - 1)]
            raise SubmissionError(
                f'is {summary.size / 1e6:.4g} MB of json, more than '
                f'{self.limit / 1e6:g}',
                f'Leave low scores out: --score-thr {enough} here, or '
                f'score_thr={enough} in test_cfg of the model')
        empty = [i for i in self.test_set.sizes if i not in summary.per_image]
        if len(empty) > max_empty * summary.images:
            raise SubmissionError(
                f'has no detection in {len(empty):,} of {summary.images:,} '
                f'images, the first of them {empty[0]}',
                'Test on all images; if there is nothing to find in these, '
                f'give --max-empty {len(empty) / summary.images:.3f}')


def _kind_of(path: Path) -> str:
    kind = path.name.split('.')[-2:-1]
    if path.suffix != '.json' or not kind or kind[0] not in GEOMETRY:
        raise SubmissionError(
            'is called neither NAME.bbox.json nor NAME.segm.json',
            'Give one of the two files that CocoMetric writes', path)
    return kind[0]


def pack_coco(results: Union[str, Path],
              annotations: Union[str, Path],
              method: str,
              out: Union[str, Path],
              *,
              score_thr: float = 0.,
              limit_mb: float = LIMIT_MB,
              max_empty: float = MAX_EMPTY) -> Summary:
    """Check detections and pack them as COCO's server wants them.

    Memory: some 100 bytes a detection, however large the file.

    Args:
        results (str | Path): ``NAME.bbox.json`` or ``NAME.segm.json``, as
            mmdet's ``CocoMetric`` writes it with ``format_only=True``.
        annotations (str | Path): ``image_info_test-dev2017.json``.
        method (str): Name of the method: letters, digits, - and _.
        out (str | Path): Folder in which ``bbox`` or ``segm`` gets the zip
            file ``detections_test-dev2017_METHOD_results.zip``.
        score_thr (float): Lowest score that is kept. Defaults to 0.
        limit_mb (float): Largest json in MB. Defaults to 1000.
        max_empty (float): Largest share of images without a detection.
            Defaults to 0.1.

    Returns:
        Summary: What was packed and where.

    Raises:
        SubmissionError: At the first fault; no zip file is written then.
    """
    results = Path(results)
    check_name(method, 'method')
    kind = _kind_of(results)
    test_set = read_test_set(annotations)
    stem = f'detections_{test_set.name}_{method}_results'
    target = Path(out) / kind / f'{stem}.zip'
    packer = _Packer(kind, test_set, limit_mb * 1e6)
    with new_zip(target, zipfile.ZIP_DEFLATED) as archive:
        with archive.open(f'{stem}.json', 'w', force_zip64=True) as file:
            before = b'['
            for index, entry in iter_array(results):
                try:
                    area = _check(entry, kind, test_set)
                    if entry['score'] < score_thr:
                        packer.summary.left_out += 1
                        continue
                    file.write(before + packer.encode(entry, area))
                except SubmissionError as e:
                    raise e.at(results, index) from None
                before = b',\n'
            file.write(b']')
        try:
            packer.check_all(max_empty)
        except SubmissionError as e:
            raise SubmissionError(e.what, e.cure, results) from None
    packer.summary.path = target
    return packer.summary
