"""Gradients that are written by hand, and honest about having no second one.

``torch.autograd.function.once_differentiable`` refuses a second derivative
only where what comes into backward requires one. With ``create_graph=True``
and a plain sum, it does not: the terms are left out in silence.
"""
import functools
from typing import Callable

import torch
from torch import Tensor


class _Refusal(torch.autograd.Function):
    """The identity of its first argument, without a derivative.

    The other arguments are what it was computed of, so that autograd comes
    by here whichever of them is asked for.
    """

    @staticmethod
    def forward(message: str, gradient: Tensor, *sources: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.message = inputs[0]

    @staticmethod
    def backward(ctx, grad: Tensor):
        raise NotImplementedError(ctx.message)


def first_order(message: str) -> Callable:
    """Decorate a backward that has no derivative of its own.

    It runs without a graph. What it returns may be part of one
    (``create_graph=True``, :func:`torch.func.grad`), but to differentiate
    that is an error, as it is within compiled graphs.

    Args:
        message (str): The error: what has no second derivative, and what
            to do instead.

    Returns:
        Callable: Decorator of the backward of a
        :class:`torch.autograd.Function` that saves all inputs, or outputs,
        that its gradients depend on, and returns a tuple.
    """

    def decorate(backward: Callable) -> Callable:

        @functools.wraps(backward)
        def wrapper(ctx, *grads):
            with torch.no_grad():
                gradients = backward(ctx, *grads)
            if torch.compiler.is_compiling() or not torch.is_grad_enabled():
                return gradients
            sources = [
                t for t in (*ctx.saved_tensors, *grads)
                if t is not None and t.requires_grad
            ]
            return tuple(
                g if g is None else _Refusal.apply(message, g, *sources)
                for g in gradients)

        return wrapper

    return decorate
