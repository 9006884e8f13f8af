"""COCO results: good ones are packed, spoiled ones refused by name."""
import copy
import json
import math
import zipfile

import numpy as np
import pytest
from pycocotools import mask as coco_mask
from submissions import SIZES, call, detections, rle, write_test_set

from mmcsan.leaderboards import SubmissionError, json_stream, pack_coco
from mmcsan.leaderboards.coco import LIMIT_MB, MAX_DETECTIONS, MAX_EMPTY
from mmcsan.leaderboards.coco_masks import check_mask, run_lengths

ZIP = 'detections_test-dev2017_csan-t_results.zip'


@pytest.fixture
def test_set(tmp_path):
    return write_test_set(tmp_path / 'image_info_test-dev2017.json')


def write(folder, kind, entries):
    path = folder / f'results.{kind}.json'
    path.write_text(
        entries if isinstance(entries, str) else json.dumps(entries))
    return path


def unpack(path):
    archive = zipfile.ZipFile(path)
    assert archive.namelist() == [f'{path.stem}.json']
    return json.loads(archive.read(f'{path.stem}.json'))


@pytest.mark.parametrize('kind', ['bbox', 'segm'])
def test_good_ones_are_packed_unchanged(kind, test_set, tmp_path, monkeypatch,
                                        capsys):
    entries = detections(kind)
    path = write(tmp_path, kind, entries)
    out = tmp_path / 'new' / 'out'
    assert call(monkeypatch, 'leaderboard/coco_test_dev', path,
                '--annotations', test_set, '--method', 'csan-t', '--out',
                out) == (0, '')
    assert '6 detections in 3 of 3 images' in capsys.readouterr().out
    assert [p.name for p in (out / kind).iterdir()] == [ZIP]
    if kind == 'segm':  # COCO's code would take their area for the masks'
        for entry in entries:
            entry.pop('bbox')
    assert unpack(out / kind / ZIP) == entries


# What a field of entry 3 becomes, and what of the fault must be named.
FIELDS = {
    'image_id': [
        (11.0, 'image_id is 11.0 (float), not an integer'),
        ('11', 'image_id is "11" (str), not an integer'),
        (True, 'image_id is true (bool), not an integer'),
        (None, 'image_id is null'),
        ([11], 'image_id is [11] (list)'),
        (13, 'image_id 13 is none of test-dev2017'),
        (-1, 'image_id -1 is none'),
        (10**400, 'none of test-dev2017'),
    ],
    'category_id': [
        (1.0, 'category_id is 1.0 (float), not an integer'),
        ('1', 'category_id is "1" (str)'),
        (False, 'category_id is false (bool)'),
        (0, 'not the labels 0 to 79 or 1 to 80'),
        (12, 'category_id 12 is none of the 80 of COCO, which go from 1 to '
         '90 with gaps. Write the ids of the annotation file, not the labels'),
        (91, 'Train and test with the classes of COCO'),
    ],
    'score': [
        ('0.5', 'score is "0.5" (str), not a number'),
        (True, 'score is true (bool)'),
        (math.nan, 'score is nan, not in 0 to 1'),
        (math.inf, 'score is inf'),
        (1.0001, 'score is 1.0001, not in 0 to 1'),
        (-0.1, 'score is -0.1'),
        (99, 'behind sigmoid or softmax'),
    ],
    'bbox': [
        ([5, 3, 7], 'not four numbers'),
        ([5, 3, 7, 9, 1], 'not four numbers'),
        ({'x': 1}, 'not four numbers'),
        ([5, 3, '7', 9], 'not four numbers'),
        ([5, 3, True, 9], 'not four numbers'),
        ([5, 3, math.nan, 9], 'not finite'),
        ([5, 3, -math.inf, 9], 'not finite'),
        ([5, 3, 10**400, 9], 'not finite'),
        ([5, 3, -7., 9], 'of negative size'),
        ([5, 3, 7, -0.5], 'of negative size'),
        ([30, 30, 39, 58], 'these look like two corners'),
        ([35, 3, 6.5, 9], 'leaves its image, which is 40 wide and 60 high'),
        ([5, 55, 7, 6.5], 'leaves its image'),
        ([-1.5, 3, 7, 9], 'scaled back to the image'),
        ([500, 3, 7, 9], 'leaves its image'),
    ],
    'segmentation': [
        ([[5, 3, 12, 3, 12, 12]], 'a list (polygons?)'),
        ('abc', 'not a dict of size and counts'),
        ({'counts': 'abc'}, 'not a dict of size and counts'),
        (dict(rle(60, 40), size=[40, 60]), 'Height comes first'),
        (rle(30, 20), 'size of the mask is [30, 20], of the image [60, 40]'),
        (dict(rle(60, 40), size=[60., 40.]), 'size of the mask'),
        (dict(rle(60, 40), size='60x40'), 'size of the mask'),
        (dict(size=[60, 40], counts=[2400]), 'a list, not compressed'),
        (dict(size=[60, 40], counts=None), 'not a string'),
        (dict(size=[60, 40], counts=str(rle(60, 40)['counts'].encode())),
         'bytes turned into a string'),
        (dict(size=[60, 40], counts=''), 'no compressed run lengths'),
        (dict(size=[60, 40], counts='W~`'), 'no compressed run lengths'),
        (dict(size=[60, 40], counts='\u20ac1'), 'no compressed run lengths'),
        (dict(size=[60, 40], counts='\ud8001'), 'no compressed run lengths'),
        (dict(size=[60, 40], counts='PPo'), 'no compressed run lengths'),
        (dict(size=[60, 40], counts='ooooooo0'), 'longer than any image'),
        (dict(size=[60, 40], counts=rle(60, 40)['counts'][:-1]),
         'no compressed run lengths'),
        (dict(size=[60, 40], counts='11'), 'do not make up the 60 x 40'),
        (dict(size=[60, 40], counts=rle(61, 40)['counts']),
         'do not make up the 60 x 40'),
        # 2401 pixels of background and -1 of the object
        (dict(size=[60, 40], counts='Q[2O'), 'do not make up'),
    ],
}
CASES = [
    pytest.param(
        'segm' if field == 'segmentation' else 'bbox',
        field, value, fault, id=f'{field}-{index}')
    for field, cases in FIELDS.items()
    for index, (value, fault) in enumerate(cases)
]


def refused(path, test_set, out, **options):
    with pytest.raises(SubmissionError) as caught:
        pack_coco(path, test_set, 'csan-t', out, **options)
    # Nothing that could be handed in by mistake.
    assert not [p for p in out.rglob('*') if p.is_file()]
    assert caught.value.cure
    return caught.value


@pytest.mark.parametrize('kind, field, value, fault', CASES)
def test_a_spoiled_field_is_refused(kind, field, value, fault, test_set,
                                    tmp_path):
    entries = detections(kind)
    entries[3] = dict(entries[3], **{field: value})
    path = write(tmp_path, kind, entries)
    error = refused(path, test_set, tmp_path / 'out')
    assert fault in str(error)
    assert (error.file, error.index) == (path, 3)


def test_the_runs_of_the_table_are_negative():
    """Else the case would be refused for another reason."""
    runs = run_lengths('Q[2O')
    assert runs.tolist() == [2401, -1]


@pytest.mark.parametrize('kind, field', [
    (kind, field) for kind, where in (('bbox', 'bbox'),
                                      ('segm', 'segmentation'))
    for field in ('image_id', 'category_id', 'score', where)
])
def test_a_missing_field_is_refused(kind, field, test_set, tmp_path):
    entries = detections(kind)
    entries[5].pop(field)
    error = refused(
        write(tmp_path, kind, entries), test_set, tmp_path / 'out')
    assert f'has no {field}' in error.what and error.index == 5


def many(entries):
    one = entries[0]
    return entries + [dict(one, score=i / 1000) for i in range(100)]


# What is done to all entries, the index at fault and what is named.
WHOLE = {
    'number': (lambda e: e[:2] + [7], 2, 'is 7 (int), not a detection'),
    'nested': (lambda e: [e], 0, 'not a detection'),
    'crowded': (many, 104, 'one more than 100 detections of image 11'),
    'doubled': (lambda e: e + e[:2], 6, 'the same as an earlier detection'),
    'empty': (lambda e: [], None, 'holds no detection'),
    'part': (lambda e: e[:4], None,
             'no detection in 1 of 3 images, the first of them 25'),
    'masks as boxes':
    (lambda e: detections('segm'), 0, 'holds masks in a file of boxes'),
    'object': (lambda e: json.dumps(dict(annotations=e)), None,
               'holds an object, not a list'),
    'nothing': (lambda e: '', None, 'holds nothing, not a list'),
    'text': (lambda e: 'AP 1.0', None, 'holds no list, not a list'),
    'cut off': (lambda e: json.dumps(e)[:-40], 5, 'not JSON from here on'),
    'no end': (lambda e: json.dumps(e)[:-1], 6, 'not JSON from here on'),
    'no comma': (lambda e: json.dumps(e).replace('}, {', '} {', 1), 1,
                 'not JSON from here on'),
    'comma': (lambda e: json.dumps(e)[:-1] + ',]', 6, 'not JSON'),
    'Python': (lambda e: str(e), 0, 'not JSON from here on'),
    'deep': (lambda e: '[' + '[' * 100000, 0, 'not JSON from here on'),
    'long number': (lambda e: '[' + '1' * 5000 + ']', 0, 'not JSON'),
    'twice': (lambda e: json.dumps(e) * 2, 6, 'goes on behind the end'),
}


@pytest.mark.parametrize('spoil, index, fault', WHOLE.values(), ids=WHOLE)
def test_a_spoiled_file_is_refused(spoil, index, fault, test_set, tmp_path):
    path = write(tmp_path, 'bbox', spoil(detections('bbox')))
    error = refused(path, test_set, tmp_path / 'out')
    assert fault in str(error) and error.file == path
    if index is not None:
        assert error.index == index


def test_a_file_that_is_no_text_is_refused(test_set, tmp_path):
    path = tmp_path / 'results.bbox.json'
    path.write_bytes(b'PK\x03\x04\xff\xfe')
    assert 'no text in UTF-8' in str(
        refused(path, test_set, tmp_path / 'out'))


@pytest.mark.parametrize('name, fault', [
    ('results.json', 'neither NAME.bbox.json nor NAME.segm.json'),
    ('results.bbox.pkl', 'neither'),
    ('results.keypoints.json', 'neither'),
    ('missing.bbox.json', 'cannot be read (No such file'),
])
def test_names_of_results(name, fault, test_set, tmp_path):
    if 'missing' not in name:
        (tmp_path / name).write_text('[]')
    assert fault in str(
        refused(tmp_path / name, test_set, tmp_path / 'out'))


@pytest.mark.parametrize('name, content, fault', [
    ('image_info_test2017.json', None, 'not of one of the sets test-dev2017'),
    ('instances_train2017.json', None, 'not of one of the sets'),
    ('image_info_test-dev2017.json', '{"images": []}', 'lists no images and'),
    ('image_info_test-dev2017.json', '{"images": [], "categories": []}',
     'lists no images or no categories'),
    ('image_info_test-dev2017.json', 'x', 'lists no images'),
    ('image_info_test-dev2017.json', '', 'lists no images'),
])
def test_wrong_annotations_are_refused(name, content, fault, tmp_path):
    path = write_test_set(tmp_path / name)
    if content is not None:
        path.write_text(content)
    results = write(tmp_path, 'bbox', detections('bbox'))
    assert fault in str(refused(results, path, tmp_path / 'out'))


def test_missing_annotations_are_refused(tmp_path):
    results = write(tmp_path, 'bbox', detections('bbox'))
    path = tmp_path / 'image_info_test-dev2017.json'
    assert 'cannot be read' in str(refused(results, path, tmp_path / 'out'))


def test_results_on_the_validation_set_are_named_so(tmp_path):
    annotations = write_test_set(tmp_path / 'instances_val2017.json')
    results = write(tmp_path, 'bbox', detections('bbox'))
    done = pack_coco(results, annotations, 'a_B-1', tmp_path)
    assert done.path.name == 'detections_val2017_a_B-1_results.zip'


@pytest.mark.parametrize('method', ['', 'a b', '../a', 'a/b', 'a.json', '-a'])
def test_methods_that_are_no_names(method, test_set, tmp_path):
    results = write(tmp_path, 'bbox', detections('bbox'))
    with pytest.raises(SubmissionError, match='letters, digits, - and _'):
        pack_coco(results, test_set, method, tmp_path / 'out')
    assert not (tmp_path / 'out').exists()


def test_the_tool_exits_with_1_and_keeps_the_older_file(
        test_set, tmp_path, monkeypatch):
    entries = detections('bbox')
    old = pack_coco(
        write(tmp_path, 'bbox', entries), test_set, 'csan-t', tmp_path).path
    before = old.read_bytes()
    entries[2]['score'] = 2
    path = write(tmp_path, 'bbox', entries)
    code, message = call(monkeypatch, 'leaderboard/coco_test_dev', path,
                         '--annotations', test_set, '--method', 'csan-t',
                         '--out', tmp_path)
    assert code == 1
    assert message == (
        f'error: {path} [2]: score is 2, not in 0 to 1. Write scores behind '
        'sigmoid or softmax; if they are NaN, so are the weights')
    assert [old] == list(old.parent.iterdir())
    assert old.read_bytes() == before


def test_usage_errors_exit_with_2(monkeypatch, test_set, tmp_path, capsys):
    args = ('x.bbox.json', '--annotations', test_set, '--method', 'x')
    tool = 'leaderboard/coco_test_dev'
    assert call(monkeypatch, tool, *args)[0] == 2
    assert call(monkeypatch, tool, *args, '--out', tmp_path, '--score-thr',
                '5')[0] == 2
    assert '5 is not in 0 to 1' in capsys.readouterr().err


def test_boxes_may_touch_borders_and_be_without_area(test_set, tmp_path):
    entries = detections('bbox')
    for box in ([0, 0, 0, 0], [39.5, 59.5, 1.4, 1.4], [-0.9, -0.9, 40, 60]):
        entries.append(dict(entries[2], bbox=box))
    # Queries without a mask give such boxes more than once.
    entries.append(dict(entries[2], bbox=[0, 0, 0, 0]))
    done = pack_coco(
        write(tmp_path, 'bbox', entries), test_set, 'csan-t', tmp_path)
    assert unpack(done.path) == entries
    assert done.degenerate == 2 and 'only be wrong: 2' in str(done)


def test_masks_may_be_empty_or_full(test_set, tmp_path):
    entries = detections('segm')
    for value in (0, 1):
        mask = coco_mask.encode(np.full((60, 40), value, np.uint8, 'F'))
        mask['counts'] = mask['counts'].decode()
        entries[2 + value]['segmentation'] = mask
    done = pack_coco(
        write(tmp_path, 'segm', entries), test_set, 'csan-t', tmp_path)
    assert done.degenerate == 1


def test_a_hundred_detections_are_allowed(test_set, tmp_path):
    entries = many(detections('bbox'))[:-2]
    done = pack_coco(
        write(tmp_path, 'bbox', entries), test_set, 'csan-t', tmp_path)
    assert done.per_image[11] == 100


def test_images_without_detections_can_be_allowed(test_set, tmp_path):
    path = write(tmp_path, 'bbox', detections('bbox')[:4])
    error = refused(path, test_set, tmp_path / 'out')
    share = float(error.cure.split('--max-empty ')[1])
    done = pack_coco(
        path, test_set, 'csan-t', tmp_path / 'out', max_empty=share + 1e-3)
    assert len(done.per_image) == 2


def test_too_large_a_file_names_the_score_that_makes_it_fit(
        test_set, tmp_path):
    entries = [
        dict(entry, score=i / 100, bbox=[1, 2, 3 + i / 7, 4])
        for entry in detections('bbox')[::2] for i in range(100)
    ]
    path = write(tmp_path, 'bbox', entries)
    limit = 0.009  # MB, of about 0.02
    error = refused(path, test_set, tmp_path / 'out', limit_mb=limit)
    assert 'MB of json, more than 0.009' in error.what
    assert 'in test_cfg of the model' in error.cure
    score = float(error.cure.split('--score-thr ')[1].split()[0])
    done = pack_coco(path, test_set, 'csan-t', tmp_path / 'out',
                     score_thr=score, limit_mb=limit)
    kept = unpack(done.path)
    assert kept == [e for e in entries if e['score'] >= score]
    assert done.left_out == len(entries) - len(kept)
    # A lower one would not have done.
    with pytest.raises(SubmissionError):
        pack_coco(path, test_set, 'csan-t', tmp_path / 'out',
                  score_thr=score - 0.011, limit_mb=limit)


@pytest.mark.parametrize('chunk', [1, 7, 64, 1 << 20])
def test_files_are_read_in_chunks_of_any_size(chunk, tmp_path, monkeypatch):
    monkeypatch.setattr(json_stream, 'CHUNK', chunk)
    entries = [*detections('segm'), 'a, ]\u20ac', [], {}]
    path = tmp_path / 'x.json'
    path.write_text(json.dumps(entries, indent=1), 'utf-8')
    found = list(json_stream.iter_array(path))
    assert found == list(enumerate(entries))


def test_no_more_than_an_entry_is_held(tmp_path, monkeypatch):
    """A broken entry does not read the rest of a large file."""
    monkeypatch.setattr(json_stream, 'CHUNK', 100)
    monkeypatch.setattr(json_stream, 'LARGEST', 1000)
    path = tmp_path / 'x.json'
    path.write_text('[{"a": 1}, {"b": "' + 'c' * 100000 + '"}]')
    longest = 0
    more = json_stream._Window.more

    def watched(self):
        nonlocal longest
        result = more(self)
        longest = max(longest, len(self.text))
        return result

    monkeypatch.setattr(json_stream._Window, 'more', watched)
    with pytest.raises(SubmissionError) as caught:
        list(json_stream.iter_array(path))
    assert caught.value.index == 1 and longest < 2000


def test_run_lengths_are_those_of_pycocotools():
    random = np.random.RandomState(0)
    for shape in ((1, 1), (7, 5), (64, 48), (300, 500)):
        for share in (0., 0.001, 0.3, 0.99, 1.):
            mask = np.asfortranarray(random.rand(*shape) < share, np.uint8)
            found = coco_mask.encode(mask)
            runs = run_lengths(found['counts'].decode())
            flat = mask.ravel('F')
            values = np.arange(len(runs)) % 2
            assert (np.repeat(values, runs) == flat).all()
            found['counts'] = found['counts'].decode()
            assert check_mask(found, shape) == flat.sum()


def test_checking_changes_nothing(test_set, tmp_path):
    mask = rle(*SIZES[11])
    before = copy.deepcopy(mask)
    check_mask(mask, SIZES[11])
    assert mask == before


def test_the_limits_are_documented(root):
    text = (root / 'docs' / 'leaderboards.md').read_text()
    assert f'at most {LIMIT_MB:g} MB (`--limit-mb`)' in text
    assert f'at most {MAX_DETECTIONS}, which' in text
    assert MAX_EMPTY == 0.1 and 'at most a tenth of all' in text
