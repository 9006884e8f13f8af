"""What every backbone must keep, as checks to be called by its tests."""
import copy

import torch


def shake(model):
    """Random weights large enough for every term to matter."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, param in model.named_parameters():
            if 'pos_embed' in name or 'token' in name:
                scale = 0.5
            elif param.dim() > 1:
                scale = 0.5 if 'table' in name else param[0].numel()**-0.5
            elif 'norm' in name:
                continue
            else:
                scale = 0.3
            param.copy_(
                torch.randn(param.shape, generator=generator) * scale)
    return model


def image(height=53, width=85, batch=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 3, height, width, generator=generator)


def check_sizes(model, size, strides):
    maps = model(image(*size))
    assert len(maps) == len(strides) == len(model.out_channels)
    for out, stride, channels in zip(maps, strides, model.out_channels):
        expect = tuple(-(-s // stride) for s in size)
        assert out.shape == (1, channels, *expect)
        assert out.is_contiguous() and out.isfinite().all()


def check_padding(model, monkeypatch, *paths, size=(53, 85)):
    """What padding holds never changes a real token, nor its gradient."""
    import torch.nn.functional as F
    results, pads = [], []

    def dirty(x, rows, cols, front=(0, 0)):
        pads.append((rows, cols))
        return F.pad(x, (0, 0, front[1], cols, front[0], rows), value=1e3)

    for _ in range(2):
        x = image(*size).requires_grad_()
        maps = model(x)
        sum(out.square().sum() for out in maps).backward()
        results.append((*maps, x.grad))
        for path in paths:
            monkeypatch.setattr(path, dirty)
    assert pads
    for before, after in zip(*results):
        assert torch.equal(before, after)


def check_batch(model, size=(53, 85)):
    model = model.eval().double()
    one, two = (image(*size, seed=s).double() for s in (1, 2))
    both = model(torch.cat([one, two]))
    for out, a, b in zip(both, model(one), model(two)):
        assert (out - torch.cat([a, b])).abs().max() < 1e-10


def check_gradients(model, size=(53, 85)):
    sum(out.square().sum() for out in model(image(*size))).backward()
    for name, param in model.named_parameters():
        assert param.grad is not None and param.grad.abs().max() > 0, name


def check_checkpointing(build, size=(53, 85)):
    results, kept = [], []
    for cheap in (False, True):
        model, total = shake(build(with_cp=cheap)).double(), 0

        def pack(tensor):
            nonlocal total
            total += tensor.numel()
            return tensor

        x = image(*size).double().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            maps = model(x)
        kept.append(total)
        sum(out.square().sum() for out in maps).backward()
        results.append([x.grad] + [p.grad for p in model.parameters()])
    for a, b in zip(*results):
        assert torch.equal(a, b)
    assert kept[1] < 0.7 * kept[0]


def check_frozen(model, frozen, is_stem, stage_of):
    """Frozen from the start, and still after train() and eval()."""

    def check():
        for name, param in model.named_parameters():
            expect = frozen < 0 if is_stem(name) else stage_of(name) >= frozen
            assert param.requires_grad == expect, name

    check()
    assert model.train() is model
    check()
    for index, stage in enumerate(model.stages):
        assert stage.training == (index >= frozen)
    assert model.drop_after_pos.training == (frozen < 0)
    assert model.eval() is model and not model.training


def check_state_dict(model):
    model(image())
    keys = {name for name, _ in model.named_parameters()}
    assert set(model.state_dict()) == keys
    copy.deepcopy(model).load_state_dict(model.state_dict(), strict=True)


def check_autocast(model, dtype, size=(53, 85)):
    with torch.autocast('cpu', dtype):
        maps = model(image(*size) * 10)
        sum(out.float().square().mean() for out in maps).backward()
    assert all(m.isfinite().all() for m in maps)
    assert all(p.grad.isfinite().all() for p in model.parameters())


def check_caches(model, monkeypatch, path, caches, limit):
    """Plans are made once a size, are few, and serve training too."""
    import importlib
    module, name = path.rsplit('.', 1)
    make = getattr(importlib.import_module(module), name)
    calls = []

    def spy(*args):
        calls.append(args)
        return make(*args)

    monkeypatch.setattr(path, spy)
    with torch.inference_mode():
        model(image())
    first = len(calls)
    model.eval()(image())
    assert first and len(calls) == first
    sum(out.sum() for out in model.train()(image())).backward()
    for size in range(5, 60):
        model(image(size, size))
    assert all(len(cache) <= limit for cache in caches)
