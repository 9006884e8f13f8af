"""Write a model as ONNX or TorchScript, and read it."""
import warnings
from pathlib import Path
from typing import Callable, List, Tuple

import torch
import torch.nn as nn
from torch import Tensor

OPSET = 18
"""The least opset that has all that is used."""

EXAMPLE = (2, 3, 96, 128)
"""Shape of the images that a graph is recorded with; it holds for others."""


class ExportError(RuntimeError):
    """A model cannot be exported; says why and what can be done."""


def _program(model: nn.Module, images: Tensor):
    """The graph of a model for any batch, height and width."""
    any_size = torch.export.Dim.DYNAMIC
    # A batch, or a map, of one is no case of its own.
    with torch.fx.experimental._config.patch(backed_size_oblivious=True):
        return torch.export.export(
            model, (images, ),
            dynamic_shapes=({0: any_size, 2: any_size, 3: any_size}, ),
            prefer_deferred_runtime_asserts_over_guards=True)


def _write_onnx(model: nn.Module, images: Tensor, path: Path) -> None:
    program = torch.onnx.export(
        _program(model, images), (),
        dynamo=True,
        opset_version=OPSET,
        input_names=['images'],
        verbose=False)
    program.save(path)


def _write_torchscript(model: nn.Module, images: Tensor, path: Path) -> None:
    traced = torch.jit.trace(model, images, check_trace=False)
    torch.jit.save(traced, path)


def _run_onnx(path: Path) -> Callable:
    import onnxruntime
    session = onnxruntime.InferenceSession(
        str(path), providers=['CPUExecutionProvider'])

    def run(images: Tensor) -> List[Tensor]:
        found = session.run(None, {session.get_inputs()[0].name:
                                   images.numpy()})
        return [torch.from_numpy(t) for t in found]

    return run


FORMATS = {
    'onnx': ('.onnx', _write_onnx, _run_onnx),
    'torchscript': ('.pt', _write_torchscript, torch.jit.load),
}
"""Of each format the suffix, the writer, and what makes a file a function."""


def export_model(model: nn.Module, path: Path, kind: str) -> Path:
    """Write a model.

    The graph holds for images of any batch, height and width. It has the
    equations of the attentions as they stand, logits of N x N included where
    tokens see all others: no runtime here has CSaN's two passes over logits
    that are never kept.

    Args:
        model (nn.Module): Output of :func:`make_exportable`.
        path (Path): Where to; its suffix is that of the format.
        kind (str): A key of ``FORMATS``.

    Returns:
        Path: The file.

    Raises:
        ExportError: If a part of the model cannot be recorded.
    """
    suffix, write, _ = FORMATS[kind]
    path = Path(path).with_suffix(suffix)
    path.parent.mkdir(parents=True, exist_ok=True)
    images = torch.rand(EXAMPLE) * 255
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter('ignore')
            write(model, images, path)
    except Exception as error:
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ExportError(
            f'{type(model.model).__name__} cannot be written as {kind}: '
            f'{line}. Backbones of mmcsan can; a neck or head may decide by '
            'the size of an image, or use operators that are no part of '
            'PyTorch') from error
    return path


def load_exported(path: Path) -> Callable[[Tensor], Tuple[Tensor, ...]]:
    """A written model as a function.

    Args:
        path (Path): Output of :func:`export_model`.

    Returns:
        callable: From images (B, 3, H, W), RGB, float32 of 0 to 255, to a
        list of outputs.

    Raises:
        ExportError: If the suffix is none of the formats'.
    """
    path = Path(path)
    for suffix, _, load in FORMATS.values():
        if path.suffix == suffix:
            function = load(path)
            break
    else:
        raise ExportError(f'{path} has none of the suffixes '
                          f'{", ".join(f[0] for f in FORMATS.values())}')

    def run(images: Tensor) -> List[Tensor]:
        with torch.no_grad():
            found = function(images)
        return [found] if isinstance(found, Tensor) else list(found)

    return run
