"""Attentions plugged into networks of other projects."""
from .plug import PluggedBackbone, PluggedNetwork, plug_attention

__all__ = ['PluggedBackbone', 'PluggedNetwork', 'plug_attention']
