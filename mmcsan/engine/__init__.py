"""What runs around the models: reading checkpoints in mmengine's runner."""
from .checkpoint_io import read_checkpoints_as_data

__all__ = ['read_checkpoints_as_data']
