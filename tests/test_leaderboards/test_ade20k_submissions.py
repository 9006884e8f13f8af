"""ADE20K label maps: good ones are packed, spoiled ones refused by name."""
import zipfile

import numpy as np
import pytest
from PIL import Image
from submissions import call, write_maps

from mmcsan.leaderboards import SubmissionError, pack_ade20k

NAMES = [f'ADE_test_{i:08d}.png' for i in range(3)]


@pytest.fixture
def maps(tmp_path):
    write_maps(tmp_path / 'maps', tmp_path / 'testing')
    return tmp_path / 'maps'


def test_good_ones_are_packed_unchanged(maps, tmp_path, monkeypatch, capsys):
    assert call(monkeypatch, 'leaderboard/ade20k', maps, '--images',
                tmp_path / 'testing', '--out', tmp_path / 'out') == (0, '')
    assert '3 label maps with 4 classes' in capsys.readouterr().out
    [path] = (tmp_path / 'out').iterdir()
    assert path.name == 'maps.zip'
    archive = zipfile.ZipFile(path)
    assert archive.namelist() == NAMES
    for name in NAMES:
        assert archive.read(name) == (maps / name).read_bytes()


def test_the_file_is_called_after_the_method(maps, tmp_path):
    done = pack_ade20k(maps, tmp_path / 'testing', tmp_path, 'csan-t')
    assert done.path == tmp_path / 'csan-t.zip'
    with pytest.raises(SubmissionError, match="method 'a b' cannot"):
        pack_ade20k(maps, tmp_path / 'testing', tmp_path, 'a b')


def change(path, how):
    """Change the pixels of a map."""
    Image.fromarray(how(np.array(Image.open(path)))).save(path)


def change_all(folder, how):
    for path in folder.iterdir():
        change(path, how)


def put(value):

    def how(labels):
        labels[0, 0] = value
        return labels

    return how


def cut(path):
    path.write_bytes(path.read_bytes()[:-30])


def as_mode(mode):

    def save(path):
        Image.open(path).convert(mode).save(path)

    return save


def drawing(path):
    Image.open(path).convert('RGB').save(path)


def with_palette(path):
    image = Image.open(path).convert('P')
    image.putpalette(list(range(256)) * 3)
    image.save(path)


def sixteen_bits(path):
    Image.fromarray(np.array(Image.open(path), np.uint16)).save(path)


def shifted_twice(labels):
    return labels + np.uint8(1)


# What is done to the second map, and what of the fault must be named.
ONE = {
    'palette': (with_palette, 'is of mode P (a palette), not L'),
    'drawing': (drawing, 'is of mode RGB (colours), not L'),
    'transparent': (as_mode('LA'), 'is of mode LA (transparency)'),
    'RGBA': (as_mode('RGBA'), 'is of mode RGBA (colours)'),
    'one bit': (as_mode('1'), 'is of mode 1 (one bit a pixel)'),
    '16 bits': (sixteen_bits, 'more than 8 bits a pixel'),
    'jpeg': (lambda p: Image.open(p).save(p, 'JPEG'), 'is JPEG, called .png'),
    'cut off': (cut, 'cannot be decoded'),
    'empty': (lambda p: p.write_bytes(b''), 'is no image'),
    'text': (lambda p: p.write_text('1 2 3'), 'is no image'),
    'turned': (lambda p: change(p, np.transpose),
               'is 60 x 40, its image 40 x 60, turned'),
    'small': (lambda p: change(p, lambda x: x[::2, ::2].copy()),
              'is 20 x 30, its image 40 x 60'),
    'larger by one': (lambda p: change(p, lambda x: np.pad(x, 1, 'edge')),
                      'is 42 x 62'),
    'no class': (lambda p: change(p, put(0)), 'holds 0, no class'),
    '151': (lambda p: change(p, put(151)), 'holds 151, but labels must be 1'),
    'ignored': (lambda p: change(p, put(255)), 'holds 255'),
    'its image': (lambda p: (p.parents[1] / 'testing' / p.with_suffix(
        '.jpg').name).write_bytes(b'GIF'), 'cannot be read. Fetch the test'),
    'both': (lambda p: change(p, lambda x: put(0)(x) + np.uint8(50)),
             'holds 200, but labels'),
}


@pytest.mark.parametrize('spoil, fault', ONE.values(), ids=ONE)
def test_a_spoiled_map_is_refused(spoil, fault, maps, tmp_path):
    spoil(maps / NAMES[1])
    with pytest.raises(SubmissionError) as caught:
        pack_ade20k(maps, tmp_path / 'testing', tmp_path / 'out')
    error = caught.value
    assert fault in str(error) and error.cure
    assert (error.file, error.index) == (maps / NAMES[1], 1)
    assert not list((tmp_path / 'out').iterdir())


# What is done to the folder, and what of the fault must be named.
FOLDER = {
    'missing': (lambda f: (f / NAMES[2]).unlink(),
                'has no ADE_test_00000002.png (1 of 3 missing)'),
    'too much': (lambda f: (f / NAMES[2]).rename(f / 'ADE_val_00000001.png'),
                 'ADE_val_00000001.png: is of no test image (1 such files)'),
    'left over': (lambda f: (f / '.DS_Store').write_text(''),
                  '.DS_Store: is not called *.png'),
    'other ending': (lambda f: (f / NAMES[0]).rename(f / f'{NAMES[0]}.jpg'),
                     'is not called *.png'),
    'folder': (lambda f: (f / 'more').mkdir(), 'is a folder among'),
    'all missing': (lambda f: [p.unlink() for p in f.iterdir()],
                    '(3 of 3 missing)'),
    'off by one': (lambda f: change_all(f, lambda x: x - np.uint8(1)),
                   'holds 0, and all maps hold 0 to 149: they are off by '
                   'one, as labels must be 1 to 150. Write with '
                   'reduce_zero_label=True'),
    'one too many': (lambda f: change_all(f, shifted_twice),
                     'holds 151, and all maps hold 2 to 151: 1 was added '
                     'twice'),
}


@pytest.mark.parametrize('spoil, fault', FOLDER.values(), ids=FOLDER)
def test_a_spoiled_folder_is_refused(spoil, fault, maps, tmp_path,
                                     monkeypatch):
    spoil(maps)
    code, message = call(monkeypatch, 'leaderboard/ade20k', maps, '--images',
                         tmp_path / 'testing', '--out', tmp_path / 'out')
    assert code == 1
    assert message.startswith(f'error: {maps}') and fault in message
    assert not list(tmp_path.rglob('*.zip*'))


def test_folders_that_are_none_are_refused(maps, tmp_path):
    images, out = tmp_path / 'testing', tmp_path / 'out'
    with pytest.raises(SubmissionError, match='folder of the label maps'):
        pack_ade20k(tmp_path / 'none', images, out)
    with pytest.raises(SubmissionError, match='folder of the test images'):
        pack_ade20k(maps, tmp_path / 'none', out)
    (tmp_path / 'empty').mkdir()
    with pytest.raises(SubmissionError, match='holds no images'):
        pack_ade20k(maps, tmp_path / 'empty', out)


def test_usage_errors_exit_with_2(maps, monkeypatch):
    assert call(monkeypatch, 'leaderboard/ade20k', maps)[0] == 2
