"""Whether the weights of a checkpoint are those of a config's model."""
from _common import fail
from mmengine.runner import CheckpointLoader

from mmcsan.checkpoints import CheckpointError

SHOWN = 3


def _weights(checkpoint: dict) -> dict:
    """The weights by name, without the prefix of a distributed run."""
    weights = checkpoint.get('state_dict', checkpoint)
    return {k[7:] if k.startswith('module.') else k: v
            for k, v in weights.items()}


def _some(names) -> str:
    more = len(names) - SHOWN
    return ', '.join(names[:SHOWN]) + (f' and {more} more' if more > 0 else '')


def require_fit(model, path: str) -> tuple:
    """Compare a checkpoint with a model; mmengine would warn and go on.

    Args:
        model (nn.Module): The model that the config builds.
        path (str): The checkpoint.

    Returns:
        tuple[dict, dict]: The weights by name, and ``meta``, the bookkeeping
        beside them.

    Raises:
        SystemExit: If the file cannot be read, or a weight is missing or of
            another shape.
    """
    try:
        checkpoint = CheckpointLoader.load_checkpoint(path, 'cpu')
    except CheckpointError as e:
        fail(str(e))
    there, wanted = _weights(checkpoint), model.state_dict()
    missing = [name for name in wanted if name not in there]
    unlike = [
        f'{name} is {tuple(there[name].shape)}, not {tuple(w.shape)}'
        for name, w in wanted.items()
        if name in there and there[name].shape != w.shape
    ]
    if missing or unlike:
        faults = [f'{len(missing)} weights are missing ({_some(missing)})'
                  ] * bool(missing) + [_some(unlike)] * bool(unlike)
        fail(f'{path} is not of the model of the config: {"; ".join(faults)}. '
             'Give the config that it was trained with')
    return there, checkpoint.get('meta', {})
