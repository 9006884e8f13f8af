"""The hook that compiles backbones."""
from types import SimpleNamespace

import pytest
import torch
import torch.nn as nn
from torch._dynamo.testing import CompileCounterWithBackend

from mmcsan.backbones import VisionTransformer
from mmcsan.engine import CompileBackboneHook


class Model(nn.Module):

    def __init__(self):
        super().__init__()
        self.backbone = VisionTransformer(
            dict(embed_dims=16, depth=1, num_heads=2), drop_path_rate=0.)


class Wrapper(nn.Module):

    def __init__(self, module):
        super().__init__()
        self.module = module


@pytest.mark.parametrize('wrap', [nn.Identity(), Wrapper])
def test_backbone_is_compiled_in_place(wrap):
    model = Model().eval()
    names = list(model.state_dict())
    x = torch.rand(2, 3, 64, 96)
    with torch.no_grad():
        wanted = model.backbone(x)[0]
    backend = CompileCounterWithBackend('eager')
    CompileBackboneHook(backend=backend).before_run(
        SimpleNamespace(model=wrap(model)))
    assert backend.frame_count == 0
    with torch.no_grad():
        found = model.backbone(x)[0]
    assert backend.frame_count >= 1
    assert torch.allclose(found, wanted, atol=1e-6)
    assert list(model.state_dict()) == names


def test_options_are_those_of_torch_compile():
    hook = CompileBackboneHook(mode='max-autotune')
    assert hook.options == dict(dynamic=True, mode='max-autotune')
    assert CompileBackboneHook(dynamic=None).options == dict(dynamic=None)


def test_without_a_backbone_there_is_nothing_to_compile():
    with pytest.raises(ValueError, match='no module that is called backbone'):
        CompileBackboneHook().before_run(SimpleNamespace(model=nn.Linear(1,
                                                                         1)))
