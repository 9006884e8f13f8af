"""Classification checkpoints: formats, reading, loading, reporting."""
from .convert import Conversion, convert_checkpoint, save_weights
from .errors import CheckpointError
from .formats import FORMATS
from .initializer import PretrainedClassifier
from .loader import LoadReport, load_classification_checkpoint
from .reader import find_checkpoint, read_state_dict
from .recognition import recognize

__all__ = [
    'CheckpointError', 'Conversion', 'FORMATS', 'LoadReport',
    'PretrainedClassifier', 'convert_checkpoint', 'find_checkpoint',
    'load_classification_checkpoint', 'read_state_dict', 'recognize',
    'save_weights'
]
