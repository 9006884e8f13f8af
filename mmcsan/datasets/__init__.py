"""The embedded demo data: scenes of real handwritten digits."""
from .digits import (DIGIT_CLASSES, SEMANTIC_CLASSES, DigitsSpec, build_digits,
                     load_digits, split_digits)

__all__ = [
    'DIGIT_CLASSES', 'SEMANTIC_CLASSES', 'DigitsSpec', 'build_digits',
    'load_digits', 'split_digits'
]
