"""What is traced or exported with one batch or size serves others."""
import pytest
import torch
from test_matrix import BACKBONES, build


@pytest.mark.parametrize('backbone', BACKBONES)
def test_a_trace_serves_other_batches(backbone):
    model = build(backbone, 'Softmax').eval()
    traced = torch.jit.trace(model, torch.rand(2, 3, 40, 56),
                             check_trace=False)
    for batch in (1, 3):
        x = torch.rand(batch, 3, 40, 56)
        for a, b in zip(traced(x), model(x)):
            assert a.shape == b.shape and torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize('window_size', [None, 3])
def test_an_exported_vit_serves_other_batches(window_size):
    model = build('VisionTransformer', 'Softmax',
                  window_size=window_size).eval()
    batch = torch.export.Dim('batch', min=1, max=64)
    with torch.no_grad():
        exported = torch.export.export(
            model, (torch.rand(2, 3, 40, 56), ),
            dynamic_shapes=({0: batch}, )).module()
        for size in (1, 5):
            x = torch.rand(size, 3, 40, 56)
            for a, b in zip(exported(x), model(x)):
                assert a.shape == b.shape and torch.allclose(a, b, atol=1e-5)


def test_an_exported_vit_serves_other_sizes():
    """All that are whole patches, and the plan of none is kept."""
    model = build('VisionTransformer', 'Softmax').eval()
    height, width = (8 * torch.export.Dim(name, min=3, max=64)
                     for name in ('rows', 'cols'))
    with torch.no_grad():
        exported = torch.export.export(
            model, (torch.rand(2, 3, 56, 72), ),
            dynamic_shapes=({2: height, 3: width}, )).module()
        assert not model._groups
        for size in ((88, 48), (24, 24)):
            x = torch.rand(2, 3, *size)
            for a, b in zip(exported(x), model(x)):
                assert a.shape == b.shape and torch.allclose(a, b, atol=1e-5)
