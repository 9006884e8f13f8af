"""The embedded demo data, scenes of real handwritten digits; own masks."""
from .digits import (DIGIT_CLASSES, SEMANTIC_CLASSES, DigitsSpec, build_digits,
                     load_digits, split_digits)
from .masks import MaskValuesToClasses

__all__ = [
    'DIGIT_CLASSES', 'SEMANTIC_CLASSES', 'DigitsSpec', 'build_digits',
    'load_digits', 'split_digits', 'MaskValuesToClasses'
]
