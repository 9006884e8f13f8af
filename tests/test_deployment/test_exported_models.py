"""Exported models compute what the models compute, at any size."""
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS

from mmcsan.deployment import (ExportError, export_model, load_exported,
                               make_exportable)
from mmcsan.deployment.graphs import AdaptivePooling

STEMS = {
    'mmpretrain': 'csan-swin-mini_1xb64_digits-cls',
    'mmseg': 'pola-swin-mini_upernet_1xb8_digits',
    'mmdet': 'csan-swin-mini_mask-rcnn_1xb8_digits',
}
SIZES = ((1, 64, 64), (2, 96, 160), (1, 101, 75))


def build(root, scope):
    cfg = Config.fromfile(root / 'configs' / 'demo' / f'{STEMS[scope]}.py')
    cfg.model.backbone.init_cfg = None
    if cfg.get('data_preprocessor'):
        cfg.model.setdefault('data_preprocessor', cfg.data_preprocessor)
    with MODELS.switch_scope_and_registry(scope) as registry:
        return registry.build(cfg.model).eval()


def images(batch, height, width):
    return torch.rand(batch, 3, height, width) * 255


@pytest.mark.parametrize('scope', STEMS)
def test_torchscript_is_the_model_at_any_size(root, scope, tmp_path):
    model = make_exportable(build(root, scope), scope)
    path = export_model(model, tmp_path / 'model', 'torchscript')
    assert path.suffix == '.pt'
    function = load_exported(path)
    for size in SIZES:
        x = images(*size)
        with torch.no_grad():
            wanted = model(x)
        wanted = [wanted] if isinstance(wanted, torch.Tensor) else wanted
        for ours, theirs in zip(wanted, function(x), strict=True):
            scale = max(ours.abs().max().item(), 1.)
            assert (ours - theirs).abs().max() < 1e-4 * scale


def test_images_are_normalised_as_in_training(root):
    """RGB of 0 to 255 goes in; the preprocessor gets BGR from OpenCV."""
    model = build(root, 'mmpretrain')
    exportable = make_exportable(model, 'mmpretrain')
    x = images(2, 48, 48).round()
    with torch.no_grad():
        prepared = model.data_preprocessor(
            dict(inputs=[i.flip(0) for i in x]), training=False)
        wanted = model(prepared['inputs'], mode='tensor').softmax(dim=1)
        assert torch.allclose(exportable(x), wanted, atol=1e-6)


def test_the_model_stays_as_it_is(root):
    model = build(root, 'mmseg')
    names = [type(m).__name__ for m in model.modules()]
    make_exportable(model, 'mmseg')
    assert names == [type(m).__name__ for m in model.modules()]
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize('bins', [(1, 1), (2, 3), (6, 6)])
@pytest.mark.parametrize('size', [(6, 6), (7, 13), (25, 9)])
def test_pooling_is_that_of_torch(bins, size):
    x = torch.rand(2, 3, *size, dtype=torch.float64)
    wanted = torch.nn.functional.adaptive_avg_pool2d(x, bins)
    assert torch.allclose(AdaptivePooling(bins)(x), wanted, atol=1e-12)


def test_what_cannot_be_written_is_an_error_that_says_why(root, tmp_path):
    model = make_exportable(build(root, 'mmpretrain'), 'mmpretrain')
    model.function = lambda model, x: (_ for _ in ()).throw(
        ValueError('no such thing'))
    with pytest.raises(ExportError, match='torchscript: no such thing'):
        export_model(model, tmp_path / 'model', 'torchscript')
    with pytest.raises(ExportError, match='suffixes'):
        load_exported(tmp_path / 'model.bin')
