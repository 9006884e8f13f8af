"""Constructor arguments: what each may be, as data, and one check for all.

A class that derives from :class:`CheckedArguments` names in ``arguments``
what its arguments may be::

    class Neck(CheckedArguments, BaseModule):

        arguments = dict(scales=list_of(number(above=0)), norm_cfg=NORM)

What is given to its constructor is checked before the constructor runs.
"""
import functools
import inspect
import math
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional

import numpy as np

from mmcsan.registry import unknown_name


@dataclass(frozen=True)
class Allowed:
    """What an argument may be; ``a | b`` is either.

    Args:
        what (str): In words, to follow 'must be'.
        fits (callable): Whether a value is that.
    """

    what: str
    fits: Callable[[Any], bool]

    def __or__(self, other: 'Allowed') -> 'Allowed':
        return Allowed(f'{self.what}, or {other.what}',
                       lambda value: self.fits(value) or other.fits(value))

    def check(self, name: str, value: Any) -> None:
        """Raise if ``value`` is something else.

        Args:
            name (str): The argument's name, for the error.
            value: What was given for it.

        Raises:
            ValueError: Names the argument, and what it may be.
        """
        if not self.fits(value):
            raise ValueError(f'{name}={value!r} must be {self.what}')


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(
        value, bool) and math.isfinite(value)


def integer(least: Optional[int] = 1, odd: bool = False) -> Allowed:
    """An int, of at least ``least`` if that is given."""
    words = 'an odd int' if odd else 'an int'
    if least is not None:
        words += f' of at least {least}'
    return Allowed(
        words, lambda value: isinstance(value, int) and _is_number(value) and
        (least is None or value >= least) and (not odd or value % 2 == 1))


def number(least: Optional[float] = None,
           above: Optional[float] = None,
           below: Optional[float] = None) -> Allowed:
    """A finite number within bounds; only ``least`` itself is within."""
    bounds = [(f'of at least {least}', least, lambda v: v >= least),
              (f'above {above}', above, lambda v: v > above),
              (f'below {below}', below, lambda v: v < below)]
    bounds = [(text, holds) for text, bound, holds in bounds
              if bound is not None]
    words = ' and '.join(text for text, _ in bounds)
    return Allowed(
        f'a number {words}'.rstrip(), lambda value: _is_number(value) and all(
            holds(value) for _, holds in bounds))


def one_of(*options: str) -> Allowed:
    """One of some words."""
    return Allowed(f'one of {", ".join(map(repr, options))}',
                   lambda value: isinstance(value, str) and value in options)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple, range))


def list_of(entry: Allowed, least: int = 1) -> Allowed:
    """A list or tuple of at least so many."""
    return Allowed(
        f'a list of {least} or more, each {entry.what}',
        lambda value: _is_list(value) and len(value) >= least and all(
            map(entry.fits, value)))


def per_stage(entry: Allowed, pairs: bool = False) -> Allowed:
    """One for all; or a list with one for each stage, which may be a list
    with one for each block. With ``pairs`` a tuple within is no list."""

    def fits_stage(value: Any) -> bool:
        blocks = isinstance(value, list) if pairs else _is_list(value)
        return entry.fits(value) or blocks and all(map(entry.fits, value))

    return Allowed(
        f'{entry.what}; or a list of such, one for each stage, or lists with '
        'one for each block', lambda value: entry.fits(value) or _is_list(
            value) and all(map(fits_stage, value)))


def sides(least: int = 1) -> Allowed:
    """A side, or a height and a width."""
    side = integer(least)
    return side | Allowed(
        'two, (height, width)', lambda value: _is_list(value) and len(
            value) == 2 and all(map(side.fits, value)))


def config(*types: str, **known: Allowed) -> Allowed:
    """A dict with a ``type``, of ``types`` if any are given; its entries
    that are ``known`` have to be what they may be."""
    kinds = f' one of {", ".join(types)}' if types else ''
    words = ''.join(f'; {key}, if given, {allowed.what}'
                    for key, allowed in known.items())

    def fits(value: Any) -> bool:
        if not isinstance(value, dict):
            return False
        kind = value.get('type')
        named = isinstance(kind, str) and kind in (types or (kind, ))
        return (named or not types and isinstance(kind, type)) and all(
            allowed.fits(value[key]) for key, allowed in known.items()
            if key in value)

    return Allowed(f'a dict with "type"{kinds}{words}', fits)


NONE = Allowed('None', lambda value: value is None)

FLAG = Allowed('True or False', lambda value: isinstance(value, bool))

RATE = Allowed('a rate in [0, 1)', number(least=0, below=1).fits)
"""A number of at least 0 and below 1, such as a dropout rate."""

ACTIVATION = config()

NORM = config(eps=number(above=0), requires_grad=FLAG)

LAYER_NORM = config(
    'LN', 'LayerNorm', eps=number(above=0), requires_grad=FLAG)

NAMED = Allowed('a name', lambda value: isinstance(value, str)) | config()
"""What is registered, by name or as a config."""

INIT = NONE | config() | Allowed(
    'a list of such', lambda value: _is_list(value) and all(
        map(config().fits, value)))


class CheckedArguments:
    """A class whose constructor's arguments are checked against tables."""

    arguments: Dict[str, Allowed] = {}
    """What arguments may be, by name, beside those of the bases."""

    def __init_subclass__(cls, **kwargs) -> None:
        super().__init_subclass__(**kwargs)
        if '__init__' in vars(cls):
            cls.__init__ = _checked(cls, cls.__init__)

    @classmethod
    def allowed_arguments(cls) -> Dict[str, Allowed]:
        """What arguments may be, by name, those of the bases included."""
        return {
            name: allowed
            for base in reversed(cls.__mro__)
            for name, allowed in vars(base).get('arguments', {}).items()
        }


def _checked(cls: type, init: Callable) -> Callable:
    """A constructor that checks what it is given before it runs.

    Numbers and arrays of numpy become those of Python.
    """
    signature = inspect.signature(init)
    table = cls.allowed_arguments()

    def take(name: str, value: Any) -> Any:
        value = _plain(value)
        if name in table:
            table[name].check(name, value)
        return value

    @functools.wraps(init)
    def wrapper(self, *args, **kwargs) -> None:
        check_names(f'argument of {cls.__name__}', kwargs, signature)
        bound = signature.bind(self, *args, **kwargs)
        given = bound.arguments
        for name in list(given)[1:]:
            kind = signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                given[name] = {k: take(k, v) for k, v in given[name].items()}
            else:
                given[name] = take(name, given[name])
        init(*bound.args, **bound.kwargs)

    return wrapper


def check_names(kind: str, given: Dict[str, Any],
                signature: inspect.Signature) -> None:
    """Raise if there is an argument that a signature has no place for.

    Args:
        kind (str): What is named, such as 'argument of Hiera'.
        given (dict): Arguments by name.
        signature (inspect.Signature): What takes them.

    Raises:
        TypeError: Lists the known ones and suggests one that comes close.
    """
    takes = signature.parameters
    if any(p.kind is p.VAR_KEYWORD for p in takes.values()):
        return
    for name in given:
        if name not in takes:
            known = [name for name in takes if name != 'self']
            raise TypeError(unknown_name(kind, name, known))


def _plain(value: Any) -> Any:
    """Python's own numbers in place of numpy's, also within containers."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return value


def built(name: str, cfg: dict, build: Callable, *args) -> Any:
    """Build a layer of a config; an error names the argument it came by.

    Args:
        name (str): The argument's name.
        cfg (dict): What was given for it.
        build (callable): Builds the layer of ``cfg`` and ``args``.
        *args: What it needs besides.

    Returns:
        What ``build`` returns.

    Raises:
        ValueError: If it cannot be built; says why.
    """
    try:
        return build(cfg, *args)
    except (KeyError, TypeError, ValueError, AssertionError) as e:
        reason = e.args[0] if e.args else e
        raise ValueError(f'{name}={cfg!r} cannot be built: {reason}') from e
