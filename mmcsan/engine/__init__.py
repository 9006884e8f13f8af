"""What runs around the models: checkpoints, guards, hooks, layer decay."""
from .attention_stats import AttentionStatsHook
from .checkpoint_io import read_checkpoints_as_data
from .compile_backbone import CompileBackboneHook
from .exact_resume import ExactResumeHook
from .guards import (BadDataError, NonFiniteError, StopOnNaNHook,
                     name_bad_data, tell_batch)
from .layer_decay import LayerDecayOptimWrapperConstructor, find_backbones
from .safe_checkpoints import SafeCheckpointHook, latest_checkpoint

__all__ = [
    'AttentionStatsHook', 'BadDataError', 'CompileBackboneHook',
    'ExactResumeHook', 'LayerDecayOptimWrapperConstructor', 'NonFiniteError',
    'SafeCheckpointHook', 'StopOnNaNHook', 'find_backbones',
    'latest_checkpoint', 'name_bad_data', 'read_checkpoints_as_data',
    'tell_batch'
]
