"""What runs around the models: reading checkpoints, layer-wise decay."""
from .checkpoint_io import read_checkpoints_as_data
from .exact_resume import ExactResumeHook
from .layer_decay import LayerDecayOptimWrapperConstructor, find_backbones

__all__ = [
    'ExactResumeHook',
    'LayerDecayOptimWrapperConstructor', 'find_backbones',
    'read_checkpoints_as_data'
]
