"""What differs where a graph is made of the code for many inputs to come."""
from typing import Sequence

import torch
from torch.fx.experimental.symbolic_shapes import has_static_value


def in_graph() -> bool:
    """Whether tensors stand for others: compiled, exported or traced.

    Nothing made then may be kept, and no number of tokens is final.
    """
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def leaves_torch() -> bool:
    """Whether the graph is to run elsewhere (export, trace, ONNX).

    It then is made of ordinary operations alone and has no backward.
    """
    return torch.compiler.is_exporting() or torch.jit.is_tracing()


def open_sizes(sizes: Sequence[int]) -> bool:
    """Whether a graph is made for any sizes, so that none may be decided on.

    Args:
        sizes (Sequence[int]): Sizes of a tensor.

    Returns:
        bool: Whether one of them is no plain number.
    """
    if torch.jit.is_tracing():
        return True
    return torch.compiler.is_compiling() and not all(
        has_static_value(size) for size in sizes)


def ceil_div(length: int, step: int) -> int:
    """Steps that cover a length; both positive.

    Not ``-(-length // step)``: where graphs go, integers may be divided
    towards zero.
    """
    return (length + step - 1) // step
