"""The error of everything that concerns checkpoints."""


class CheckpointError(RuntimeError):
    """A checkpoint cannot be read, or does not fit the backbone."""
