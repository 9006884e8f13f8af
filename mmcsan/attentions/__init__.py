"""Attentions: one file a paper, each registered in ``ATTENTIONS``."""
from .base import (BaseAttention, TokenLayout, attention_class,
                   build_attention, pool_siblings)
from .csan import CSaN
from .pola import Pola
from .polapp import PolaPP, PolaPPSoftmax
from .softmax import Softmax

__all__ = [
    'BaseAttention', 'CSaN', 'Pola', 'PolaPP', 'PolaPPSoftmax', 'Softmax',
    'TokenLayout', 'attention_class', 'build_attention', 'pool_siblings'
]
