"""The fallback gives what mmcv's compiled operators give.

The answers of the compiled operators are kept in tests/data together with
the script that asked for them; the same cases run here over the fallback,
whether or not this mmcv has compiled operators.
"""
import importlib.util
import os.path as osp
import platform
import sys

import numpy as np
import pytest
import torch

from mmcsan.compat import install_mmcv_ops_fallback, mmcv_ops
from mmcsan.compat.mmcv_ops_finder import _FallbackFinder

install_mmcv_ops_fallback()
mmcv = pytest.importorskip('mmcv')
ops = pytest.importorskip('mmcv.ops')


def _load_cases():
    path = osp.join(
        osp.dirname(__file__), '../data/make_mmcv_ops_reference.py')
    spec = importlib.util.spec_from_file_location('mmcv_ops_cases', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = _load_cases()
is_compiled = bool(getattr(sys.modules['mmcv._ext'], '__file__', None))
as_recorded = pytest.mark.skipif(
    platform.machine() not in ('x86_64', 'AMD64')
    or platform.libc_ver()[0] != 'glibc',
    reason='the answers were recorded on x86-64 with glibc; others may fuse '
    'multiplications and additions or round expf otherwise')


@pytest.fixture(scope='module')
def answers():
    with np.load(reference.REFERENCE) as data:
        return dict(data)


@pytest.fixture
def fallback(monkeypatch):
    """The fallback for ``mmcv._ext``, put behind mmcv's functions."""
    spec = _FallbackFinder().find_spec('mmcv._ext', mmcv.__path__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ('nms', 'roi_align', 'focal_loss', 'roi_pool', 'info'):
        monkeypatch.setattr(sys.modules[f'mmcv.ops.{name}'], 'ext_module',
                            module)
    return module


def _assert_same(actual, expected, name):
    assert set(actual) == set(expected), name
    for key, value in actual.items():
        assert value.dtype == expected[key].dtype, (name, key)
        np.testing.assert_array_equal(
            value, expected[key], err_msg=f'{name}: {key}')


@as_recorded
@pytest.mark.parametrize('name', reference.CASES)
def test_equals_recorded_answers(name, answers, fallback, monkeypatch):
    expected = {
        key[len(name) + 1:]: value
        for key, value in answers.items() if key.startswith(f'{name}/')
    }
    if 'order' in expected:
        # How equal scores are ranked is the sort's choice, which differs
        # between processors: take the recorded one.
        order = torch.from_numpy(expected.pop('order').astype(np.int64))
        monkeypatch.setattr(mmcv_ops, '_rank', lambda scores: order)
    actual = reference.CASES[name]()
    actual.pop('order', None)
    _assert_same(actual, expected, name)


def test_every_recorded_answer_is_compared(answers):
    assert {key.rsplit('/', 1)[0] for key in answers} == set(reference.CASES)


@pytest.mark.skipif(not is_compiled, reason='mmcv has no compiled operators')
def test_equals_compiled_operators_beside_it(request):
    expected = {name: case() for name, case in reference.CASES.items()}
    request.getfixturevalue('fallback')
    for name, case in reference.CASES.items():
        _assert_same(case(), expected[name], name)


@pytest.mark.parametrize('offset', (0, 1))
def test_nms_ranks_equal_scores_as_sort_does(offset, fallback):
    # Nothing overlaps, so all that is left to see is the order.
    corners = torch.arange(500.)[:, None] * 10
    boxes = torch.cat([corners, corners, corners + 5, corners + 5], dim=1)
    scores = torch.arange(500) % 3 / 4
    kept = fallback.nms(boxes, scores, iou_threshold=0.5, offset=offset)
    assert torch.equal(kept, scores.sort(0, descending=True)[1])


def test_roi_align_gradient_is_the_derivative(fallback):
    rois = torch.from_numpy(reference.make_rois(4, 0.5, False))
    values = torch.rand(2, 1, 5, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x: ops.roi_align(x, rois, (2, 3), 0.5, 0, 'avg', True), values)


def test_roi_align_keeps_its_dtype_under_autocast(fallback):
    rois = torch.tensor([[0, 0.3, 0.2, 4.1, 3.7]], dtype=torch.float16)
    values = torch.rand(1, 2, 5, 6, dtype=torch.float16)
    expected = ops.roi_align(values, rois, (2, 2), 1., 2, 'avg', True)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        output = ops.roi_align(values, rois, (2, 2), 1., 2, 'avg', True)
    assert output.dtype == torch.float16
    assert torch.equal(output, expected)


def test_softnms_leaves_its_inputs_alone(fallback):
    boxes, scores = reference.make_boxes('plain', 50)
    before = boxes.clone(), scores.clone()
    ops.soft_nms(boxes, scores, 0.3)
    assert torch.equal(boxes, before[0])
    assert torch.equal(scores, before[1])


@pytest.mark.parametrize('name', ('nms', 'soft_nms'))
def test_nms_names_a_wrong_dtype(name, fallback):
    boxes, scores = reference.make_boxes('plain', 5)
    with pytest.raises(RuntimeError, match=r'float32 boxes.*float64'):
        getattr(ops, name)(boxes.double(), scores, 0.5)
    with pytest.raises(RuntimeError, match=r'float32 scores.*float16'):
        getattr(ops, name)(boxes, scores.half(), 0.5)


def test_roi_align_names_what_it_cannot_do(fallback):
    values, rois = torch.rand(1, 1, 4, 4), torch.tensor([[0., 0, 0, 2, 2]])
    with pytest.raises(NotImplementedError, match="pool_mode='max'"):
        ops.roi_align(values, rois, 2, 1., 0, 'max', True)
    with pytest.raises(RuntimeError, match='bfloat16'):
        ops.roi_align(values.bfloat16(), rois.bfloat16(), 2, 1., 0, 'avg')
    with pytest.raises(RuntimeError, match='negative width or height'):
        ops.roi_align(values, rois * -1, 2, 1., 0, 'avg', True)
    assert ops.roi_align(values, rois * -1, 2, 1., 0, 'avg',
                         False).isfinite().all()


def test_any_other_operator_is_named_with_the_cure(fallback):
    rois = torch.tensor([[0., 0, 0, 2, 2]])
    with pytest.raises(NotImplementedError) as info:
        ops.roi_pool(torch.rand(1, 1, 4, 4), rois, 2)
    for part in ('roi_pool_forward', '--no-build-isolation', 'c++20'):
        assert part in str(info.value)
    with pytest.raises(NotImplementedError, match='sigmoid_focal_loss'):
        ops.sigmoid_focal_loss(
            torch.rand(2, 3), torch.tensor([0, 1]), 2.0, 0.25, None, 'none')
    assert not hasattr(fallback, '__path__')


def test_versions_claim_no_compiler(fallback):
    assert 'not compiled' in ops.get_compiler_version()
    assert 'not compiled' in ops.get_compiling_cuda_version()


@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs CUDA')
def test_cuda_agrees_with_cpu(fallback):
    boxes, scores = reference.make_boxes('plain', 200)
    for offset in (0, 1):
        kept = fallback.nms(boxes, scores, 0.5, offset)
        cuda = fallback.nms(boxes.cuda(), scores.cuda(), 0.5, offset)
        assert cuda.is_cuda and torch.equal(cuda.cpu(), kept)
    values = torch.rand(2, 3, 13, 17)
    rois = torch.from_numpy(reference.make_rois(6, 1., False)).float()
    results = []
    for device in ('cpu', 'cuda'):
        leaf = values.to(device).requires_grad_()
        output = ops.roi_align(leaf, rois.to(device), 3, 1., 0, 'avg', True)
        output.square().sum().backward()
        results.append((output.detach().cpu(), leaf.grad.cpu()))
    torch.testing.assert_close(*results)
