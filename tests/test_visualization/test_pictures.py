"""Sheets of pictures, and the tool that draws them."""
import importlib
import shlex

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from mmengine.config import Config
from mmengine.registry import init_default_scope
from PIL import Image

from mmcsan.registry import MODELS
from mmcsan.visualization import AttentionRecord
from mmcsan.visualization.legend import QUANTITIES, SHOWN
from mmcsan.visualization.pictures import _overlay

DEMO = 'configs/demo/csan-swin-mini_upernet_1xb8_digits.py'


def test_colours_lie_on_their_pixels():
    """A token of 8 px, where the map reaches beyond the image."""
    values = np.zeros((4, 6))
    values[1, 2] = 1
    record = AttentionRecord('a', 'CSaN', 1, ('attention', ), (4, 6),
                             (30, 45), (8, 8))
    figure = Figure(figsize=(4.5, 3), dpi=100)
    FigureCanvasAgg(figure)
    axis = figure.add_axes((0, 0, 1, 1))
    axis.axis('off')
    _overlay(axis, np.zeros((30, 45, 3), np.uint8), record,
             QUANTITIES['attention'], values)
    figure.canvas.draw()
    pixels = np.asarray(figure.canvas.buffer_rgba())[..., :3].astype(int)
    # In magma most is bright; 10 pixels of the picture are one of the image.
    rows, cols = np.nonzero(pixels[:, :, 0] > 180)
    for found, expect in ((rows.min(), 80), (rows.max(), 159),
                          (cols.min(), 160), (cols.max(), 239)):
        assert abs(found - expect) <= 1


def test_every_quantity_has_a_legend():
    assert set(SHOWN) <= set(QUANTITIES)
    for name, quantity in QUANTITIES.items():
        assert quantity.meaning.endswith('.') and quantity.term, name


@pytest.fixture
def run(root, tmp_path, monkeypatch, capsys):
    """Run the tool in this process."""
    monkeypatch.syspath_prepend(str(root / 'tools' / 'analysis'))
    monkeypatch.chdir(tmp_path)
    tool = importlib.import_module('visualize_attention')

    def call(*args, fail=False):
        monkeypatch.setattr('sys.argv', ['tool', *map(str, args)])
        if fail:
            with pytest.raises(SystemExit) as caught:
                tool.main()
            return str(caught.value)
        tool.main()
        return capsys.readouterr().out

    return call


def checkpoint_of(config, path):
    """Random weights."""
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    with MODELS.switch_scope_and_registry(cfg.default_scope) as registry:
        model = registry.build(cfg.model)
    torch.save(dict(state_dict=model.state_dict()), path)
    return path


def photograph(path, width=40, height=32):
    pixels = np.random.default_rng(0).integers(
        0, 255, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def test_command_of_the_page(run, root, tmp_path):
    """The page's own command, on a small image with random weights."""
    text = (root / 'docs' / 'what_csan_does.md').read_text()
    command = text.split('visualize_attention.py', 1)[1].split('```')[0]
    args = shlex.split(command.replace('\\\n', ' '))
    config, _, image = args[:3]
    args[0] = root / config
    args[1] = checkpoint_of(root / config, tmp_path / 'random.pth')
    args[2] = photograph(tmp_path / image.rsplit('/', 1)[1], 128, 128)
    args[args.index('--out') + 1] = 'out'
    run(*args)
    made = {p.name for p in (tmp_path / 'out').iterdir()}
    folder = root / 'docs' / 'images' / 'what_csan_does'
    assert made == {p.name for p in folder.iterdir()}
    for path in folder.iterdir():
        assert path.stat().st_size < 150_000
        assert f'images/what_csan_does/{path.name}' in text


@pytest.mark.parametrize('config, size, columns, names', [
    ('configs/demo/pola-swin-mini_mask-rcnn_1xb8_digits.py', (102, 128), 8,
     ('negative_queries', 'negative_keys', 'gate', 'entropy', 'power')),
    ('configs/demo/csan-swin-mini_1xb64_digits-cls.py', (32, 40), 6,
     ('temperature', 'amplification', 'descriptor', 'public_gain',
      'private_energy', 'entropy')),
])
def test_detector_and_classifier(run, root, tmp_path, config, size,
                                 columns, names):
    checkpoint = checkpoint_of(root / config, tmp_path / 'random.pth')
    images = [photograph(tmp_path / f'{n}.png') for n in 'ab']
    out = run(root / config, checkpoint, *images, '--out', 'out', '--point',
              9, 5, '--heads', 1, '--stages', 0, 2)
    assert '2 images' in out
    sheet = Image.open(tmp_path / 'out' / 'a.png')
    assert sheet.width == pytest.approx((columns * 1.75 + 0.2) * 85, abs=2)
    assert (tmp_path / 'out' / 'b_1.png').exists()
    numbers = np.load(tmp_path / 'out' / 'b.npz')
    # The detector resizes to 128 pixels and pads.
    assert numbers['image'].shape == (*size, 3)
    prefix = 'backbone.stages.0.blocks.0.attn'
    for name in names:
        assert f'{prefix}/{name}' in numbers, name
    height, width = numbers[f'{prefix}/entropy'].shape[-2:]
    assert (height, width) == (-(-size[0] // 32) * 8, -(-size[1] // 4))
    assert (numbers[f'{prefix}/stride'] == 4).all()
    assert numbers[f'{prefix}/rows'].shape[-2:] == (height, width)


def test_bad_arguments(run, root, tmp_path):
    config, image = root / DEMO, photograph(tmp_path / 'a.png')
    checkpoint = checkpoint_of(config, tmp_path / 'random.pth')
    other = checkpoint_of(
        root / 'configs/demo/softmax-swin-mini_1xb64_digits-cls.py',
        tmp_path / 'other.pth')
    for args, words in (
        (('none.py', checkpoint, image), 'no config none.py'),
        ((config, 'none.pth', image), 'no checkpoint at'),
        ((config, other, image), 'no checkpoint of this config'),
        ((config, checkpoint, 'none.png'), 'no image none.png'),
        ((config, checkpoint, image, image), 'names that differ'),
        ((config, checkpoint, image, '--point', 40, 3), '40 x 32 pixels'),
        ((config, checkpoint, image, '--stages', 4), 'no stage 4'),
    ):
        assert words in run(*args, fail=True)
