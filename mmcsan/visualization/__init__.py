"""See what attentions decide: record it, lay it on the image, draw it."""
from .placement import Placement, place_tokens, token_stride
from .recorder import AttentionRecord, record_attention

__all__ = [
    'AttentionRecord', 'Placement', 'place_tokens', 'record_attention',
    'token_stride'
]
