"""Turn checkpoints of any known format into this project's own."""
import hashlib
import io
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Optional, Union

import torch
from torch import Tensor

from .errors import CheckpointError
from .formats import Format
from .reader import read_weights
from .recognition import peel, recognize

SUFFIXES = ('.safetensors', '.pth')


@dataclass
class Conversion:
    """A checkpoint under this project's names.

    Args:
        format (Format): What it was.
        weights (dict[str, Tensor]): The backbone's weights.
        dropped (list[str]): Keys left out by design: heads, derived buffers,
            what stands beside a backbone.
        unexpected (list[str]): Keys that no rule names.
    """

    format: Format
    weights: Dict[str, Tensor]
    dropped: List[str] = field(default_factory=list)
    unexpected: List[str] = field(default_factory=list)

    @property
    def num_parameters(self) -> int:
        """Numbers in all weights."""
        return sum(value.numel() for value in self.weights.values())

    def guess_arch(self) -> dict:
        """Arch and attention that the weights are of, from their shapes.

        Returns:
            dict: The backbone's settings; empty if the family cannot tell.
        """
        return self.format.guess(self.weights) if self.format.guess else {}

    def to_dict(self) -> dict:
        """What happened, as plain data fit for JSON."""
        return dict(
            format=self.format.name,
            family=self.format.family,
            parameters=self.num_parameters,
            arch=self.guess_arch(),
            converted=sorted(self.weights),
            dropped=self.dropped,
            unexpected=self.unexpected)


def convert_checkpoint(source: Union[str, Path, dict],
                       ema: bool = False,
                       prefix: Optional[str] = None) -> Conversion:
    """Read a checkpoint of any known format and rename its weights.

    Args:
        source (str | Path | dict): A file, a URL, or a state dict.
        ema (bool): Whether to take averaged weights. Defaults to False.
        prefix (str, optional): What stands before the keys of the network
            that is meant, if that is nothing usual or one of several; or the
            name of the entry that holds it. Defaults to None.

    Returns:
        Conversion: The weights and what became of every key.

    Raises:
        CheckpointError: If it cannot be read or is of no known format.
    """
    name = 'checkpoint' if isinstance(source, dict) else str(source)
    state_dict, entered = read_weights(source, ema, prefix)
    try:
        inside, outside = peel(state_dict, None if entered else prefix)
        fmt = recognize(inside)
        renamed = fmt.rename(inside)
    except CheckpointError as e:
        raise CheckpointError(f'{name}: {e}') from e
    return Conversion(fmt, renamed.weights, outside + renamed.dropped,
                      renamed.unexpected)


def save_weights(weights: Dict[str, Tensor], path: Union[str, Path]) -> Path:
    """Write tensors, and nothing else, under a name that tells their hash.

    Args:
        weights (dict[str, Tensor]): The weights.
        path (str | Path): Where to; ``.safetensors`` or ``.pth``. The first
            8 hex digits of the file's SHA-256 are put behind its stem.

    Returns:
        Path: The file. An equal file that is there is left as it is.

    Raises:
        CheckpointError: If the suffix is another one.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise CheckpointError(f'{path} must end in one of '
                              f'{", ".join(SUFFIXES)}')
    ordered = {k: weights[k].contiguous().clone() for k in sorted(weights)}
    if path.suffix == '.pth':
        buffer = io.BytesIO()
        torch.save(ordered, buffer)
        data = buffer.getvalue()
    else:
        from safetensors.torch import save
        data = save(ordered)
    digest = hashlib.sha256(data).hexdigest()[:8]
    stem = re.sub(r'-[0-9a-f]{8}$', '', path.stem)
    path = path.with_name(f'{stem}-{digest}{path.suffix}')
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        # In one go: a name with a hash must never be on half a file.
        part = path.with_name(path.name + '.part')
        part.write_bytes(data)
        part.replace(path)
    return path
