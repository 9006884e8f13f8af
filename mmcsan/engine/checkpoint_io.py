"""Have mmengine's runner read checkpoints as data."""
from mmengine.runner.checkpoint import CheckpointLoader

from mmcsan.checkpoints.pickles import RunUnpickler, load_torch
from mmcsan.checkpoints.reader import open_source

_SCHEMES = ('', 'http://', 'https://')


def load_as_data(filename: str, map_location) -> dict:
    """Read a checkpoint of a run.

    Args:
        filename (str): A file, or an address that mmcsan reads.
        map_location (str | callable): Where tensors go, as of torch.load.

    Returns:
        dict: What it holds.

    Raises:
        CheckpointError: If it cannot be had, is damaged or holds more than
            data.
    """
    with open_source(filename) as file:
        return load_torch(file, str(filename), RunUnpickler, map_location)


# mmengine logs the name of this function without 'load_from_'.
load_as_data.__name__ = 'load_from_mmcsan'


def read_checkpoints_as_data() -> None:
    """Have mmengine read checkpoints without executing what is in them.

    mmengine's own loaders fall back to unpickling whatever a file holds. All
    of them are replaced, for every scheme; what a user registers beside them
    stays.
    """
    own = [
        scheme for scheme, loader in CheckpointLoader._schemes.items()
        if loader.__module__ == 'mmengine.runner.checkpoint'
    ]
    CheckpointLoader.register_scheme(tuple({*own, *_SCHEMES}),
                                     load_as_data,
                                     force=True)
