"""Find the network in a file, and tell of which format it is."""
from typing import Dict, Iterable, List, Optional, Tuple

from torch import Tensor

from .errors import CheckpointError
from .formats import FORMATS, Format

ANYWHERE = ('_orig_mod', '_checkpoint_wrapped_module', '_fsdp_wrapped_module')
"""What torch puts into names, also in the middle of one."""

ON_REQUEST = ('student', 'teacher', 'ema', 'ema_model', 'model_ema',
              'online', 'target', 'momentum', 'momentum_encoder', 'encoder_k',
              'module_ema', 'backbone_ema', 'target_generator')
"""First words of networks beside the one that is meant, or one of several.
They are read if ``prefix`` names them."""


def clean(state_dict: Dict[str, Tensor]) -> Dict[str, Tensor]:
    """Take out of all names what torch's wrappers put anywhere in them.

    Args:
        state_dict (dict[str, Tensor]): Weights.

    Returns:
        dict[str, Tensor]: The same tensors.

    Raises:
        CheckpointError: If two keys then have one name.
    """
    cleaned, origin = {}, {}
    for key, value in state_dict.items():
        name = key
        if '_orig_mod' in key or '_wrapped_module' in key:
            name = '.'.join(p for p in key.split('.') if p not in ANYWHERE)
        if name in cleaned:
            raise CheckpointError(f'{origin[name]} and {key} are one key, '
                                  f'{name}, but for what torch wraps')
        cleaned[name], origin[name] = value, key
    return cleaned


def find_prefixes(keys: Iterable[str]) -> List[str]:
    """What stands before names that a backbone may have.

    Args:
        keys (Iterable[str]): All names.

    Returns:
        list[str]: Such as ``'module.backbone.'`` or ``''``, sorted by how
        many names they have.
    """
    roots = {root for fmt in FORMATS for root in fmt.roots}
    counts: Dict[str, int] = {}
    for key in keys:
        words = key.split('.')
        for index, word in enumerate(words[:-1]):
            if word in roots:
                prefix = '.'.join(words[:index]) + '.' if index else ''
                counts[prefix] = counts.get(prefix, 0) + 1
                break
    return sorted(counts, key=counts.get, reverse=True)


def _strip(state_dict: Dict[str, Tensor], prefix: str) -> Dict[str, Tensor]:
    if not prefix:
        return state_dict
    return {
        key[len(prefix):]: value
        for key, value in state_dict.items() if key.startswith(prefix)
    }


def _strip_given(state_dict: Dict[str, Tensor],
                 prefix: str) -> Tuple[Dict[str, Tensor], List[str]]:
    """Take what has the prefix that was asked for."""
    prefix = prefix.rstrip('.') + '.'
    inside = _strip(state_dict, prefix)
    if not inside:
        raise CheckpointError(
            f'no key starts with prefix={prefix!r}; keys look like '
            f'{", ".join(list(state_dict)[:3])}')
    return inside, [k for k in state_dict if not k.startswith(prefix)]


def peel(state_dict: Dict[str, Tensor],
         prefix: Optional[str] = None) -> Tuple[Dict[str, Tensor], List[str]]:
    """Peel wrappers' prefixes off, and take the backbone out of a whole model.

    Args:
        state_dict (dict[str, Tensor]): Weights of a backbone, classifier,
            detector or segmentor.
        prefix (str, optional): What the names of the network that is meant
            start with; what stands between that and the backbone's own names
            is found. Defaults to None.

    Returns:
        tuple: The backbone's weights with bare names, and the names of what
        stands beside the backbone.

    Raises:
        CheckpointError: If no key has the given prefix, if several networks
            fit, or only one that has to be asked for.
    """
    state_dict = clean(state_dict)
    outside: List[str] = []
    if prefix and prefix.strip('.'):
        state_dict, outside = _strip_given(state_dict, prefix)
    candidates = find_prefixes(state_dict)
    fitting = {}
    for candidate in candidates:
        inside = _strip(state_dict, candidate)
        if any(fmt.fits(inside) for fmt in FORMATS):
            fitting[candidate] = inside
    chosen = _choose(fitting)
    if chosen is None:
        # Nothing fits: leave the most of it, for the error to come.
        chosen = candidates[0] if candidates else ''
        inside = _strip(state_dict, chosen)
    else:
        inside = fitting[chosen]
    outside += [key for key in state_dict if not key.startswith(chosen)]
    return inside, outside


def _choose(fitting: Dict[str, dict]) -> Optional[str]:
    """The one network that is meant, of those that are there."""
    # One within another is a part of it.
    outer = [p for p in fitting
             if not any(q != p and p.startswith(q) for q in fitting)]
    ordinary = [p for p in outer
                if not set(p.split('.')) & set(ON_REQUEST)]
    if len(ordinary) == 1:
        return ordinary[0]
    if not outer:
        return None
    names = ' and '.join(map(repr, sorted(ordinary or outer)))
    if ordinary or len(outer) > 1:
        raise CheckpointError(
            f'it holds several networks that fit, {names}; name the one that '
            "is meant as 'prefix'")
    raise CheckpointError(
        f'the network in it is {names}, which is read on request only; give '
        f'prefix={outer[0]!r} if it is meant')


def recognize(keys: Iterable[str]) -> Format:
    """Tell the format of a checkpoint from its keys.

    Args:
        keys (Iterable[str]): Bare names, see :func:`peel`.

    Returns:
        Format: The one that fits.

    Raises:
        CheckpointError: If none or several fit; says what it looks like.
    """
    keys = list(keys)
    fitting = [fmt for fmt in FORMATS if fmt.fits(keys)]
    if len(fitting) == 1:
        return fitting[0]
    look = f'its {len(keys)} keys look like {", ".join(keys[:4])}'
    if fitting:
        names = ' and '.join(fmt.name for fmt in fitting)
        raise CheckpointError(f'it fits several formats, {names}; {look}')
    raise CheckpointError('it is no checkpoint that mmcsan knows ('
                          f'{", ".join(f.name for f in FORMATS)}); {look}. If '
                          'something unusual stands before the names of the '
                          "backbone, give it as 'prefix'")
