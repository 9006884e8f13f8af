"""Attentions: one file a paper, each registered in ``ATTENTIONS``."""
from .base import BaseAttention, TokenLayout, build_attention
from .csan import CSaN
from .softmax import Softmax

__all__ = [
    'BaseAttention', 'CSaN', 'Softmax', 'TokenLayout', 'build_attention'
]
