"""Read the parity fixtures: the authors' weights, inputs and outputs."""
import json
from pathlib import Path

from safetensors.torch import load_file


def names(folder: Path, kind: str) -> list:
    """Fixtures of one kind, sorted."""
    found = []
    for path in sorted(folder.glob('*.json')):
        meta = json.loads(path.read_text())
        if meta.get('kind') == kind and 'file' in meta:
            found.append(path.stem)
    return found


def read(folder: Path, name: str):
    """Meta data, weights in float64 and all other tensors of a fixture."""
    meta = json.loads((folder / f'{name}.json').read_text())
    tensors = load_file(folder / meta['file'])
    weights = {
        key[len('weights/'):]: value.double()
        for key, value in tensors.items() if key.startswith('weights/')
    }
    return meta, weights, tensors


def relative_error(ours, theirs) -> float:
    """Largest difference, in terms of the largest entry of theirs."""
    theirs = theirs.to(ours.dtype)
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()
