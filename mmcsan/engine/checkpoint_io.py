"""Have mmengine's runner read files and http(s) addresses as data."""
from mmengine.runner.checkpoint import CheckpointLoader

from mmcsan.checkpoints.pickles import RunUnpickler, load_torch
from mmcsan.checkpoints.reader import download, find_checkpoint


def load_from_local(filename: str, map_location) -> dict:
    """Read a checkpoint of a run.

    Args:
        filename (str): The file.
        map_location (str | callable): Where tensors go, as of torch.load.

    Returns:
        dict: What it holds.

    Raises:
        CheckpointError: If it is missing, damaged or holds more than data.
    """
    path = find_checkpoint(filename)
    with open(path, 'rb') as file:
        return load_torch(file, str(path), RunUnpickler, map_location)


def load_from_http(filename: str, map_location) -> dict:
    """Download a checkpoint of a run and read it.

    Args:
        filename (str): Its address.
        map_location (str | callable): Where tensors go, as of torch.load.

    Returns:
        dict: What it holds.

    Raises:
        CheckpointError: If it cannot be had, is damaged or is no data.
    """
    return load_torch(
        download(filename), filename, RunUnpickler, map_location)


def read_checkpoints_as_data() -> None:
    """Have mmengine read checkpoints without executing what is in them.

    mmengine's own loader falls back to unpickling whatever a file holds. This
    covers files and ``http(s)`` addresses; other schemes, such as ``s3://``
    or ``openmmlab://``, are still mmengine's.
    """
    # mmengine logs the names of these functions without 'load_from_'.
    CheckpointLoader.register_scheme('', load_from_local, force=True)
    CheckpointLoader.register_scheme(('http://', 'https://'),
                                     load_from_http,
                                     force=True)
