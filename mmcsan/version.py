"""The version of mmcsan, and the versions of what it stands on.

``REQUIREMENTS`` is the one table of floors and ceilings: the check at import,
the tools and ``setup.py`` all read it. Only the standard library is imported
here, so that the table can be read where nothing else is installed.
"""
import importlib.metadata
import importlib.util
import re
import warnings
from typing import Dict, Iterable, List, NamedTuple, Optional, Tuple

__version__ = '0.1.0'


class Requirement(NamedTuple):
    """What mmcsan asks of one package.

    Args:
        project (str): Name of the upstream distribution. Maintained forks
            carry other distribution names around the same import name.
        floor (str): The lowest version that works.
        tested (str): The highest release series that was tested, e.g. '2.3'
            for every 2.3.x.
        needed (bool): Whether ``import mmcsan`` fails without the package.
            The codebases of the single tasks are asked for when they are
            used, since nobody needs all three.
    """
    project: str
    floor: str
    tested: str
    needed: bool


REQUIREMENTS: Dict[str, Requirement] = {
    'torch': Requirement('torch', '2.1.0', '2.14', True),
    'torchvision': Requirement('torchvision', '0.16.0', '0.29', True),
    'mmengine': Requirement('mmengine', '0.10.3', '0.10', True),
    'mmcv': Requirement('mmcv', '2.1.0', '2.3', True),
    'mmpretrain': Requirement('mmpretrain', '1.2.0', '1.3', False),
    'mmdet': Requirement('mmdet', '3.3.0', '3.5', False),
    'mmseg': Requirement('mmsegmentation', '1.2.2', '1.4', False),
}


class DependencyError(RuntimeError):
    """A package that mmcsan stands on is missing or too old.

    Not an :class:`ImportError`: the registries of mmengine swallow those
    while they look for ``mmcsan.registry``, and the cure would go unseen.
    """


def release(version: str) -> Tuple[int, ...]:
    """The release numbers of a version: '2.14.1+cpu' gives (2, 14, 1).

    Args:
        version (str): A version as distributions carry it.

    Returns:
        tuple[int]: The numbers before any pre-release or local part.
    """
    return tuple(
        int(n) for n in re.match(r'\d*(?:\.\d+)*', version)[0].split('.') if n)


def _provides(dist: importlib.metadata.Distribution) -> set:
    """The importable top-level names of a distribution."""
    declared = dist.read_text('top_level.txt')
    if declared:
        return set(declared.split())
    return {
        file.parts[0]
        for file in dist.files or () if len(file.parts) == 2
        and file.name == '__init__.py'
    }


def installed_versions(
        modules: Iterable[str]) -> Dict[str, Tuple[str, Optional[str]]]:
    """Distribution and version behind import names, importing none of them.

    The import name is the key because a fork and its upstream share it while
    their distributions are named differently.

    Args:
        modules (Iterable[str]): Top-level import names.

    Returns:
        dict[str, tuple]: ``(distribution name, version)`` of each module that
        can be imported. The version is None for a source tree on the path
        that was never installed. Missing modules are left out.
    """
    present = [m for m in modules if importlib.util.find_spec(m)]
    found = {m: (m, None) for m in present}
    for dist in importlib.metadata.distributions():
        for module in _provides(dist).intersection(present):
            known = found[module][1]
            if known is None or release(known) < release(dist.version):
                found[module] = (dist.metadata['Name'], dist.version)
    return found


def _install_command(modules: List[str], found: dict) -> str:
    """The command that installs ``modules`` and overwrites nothing."""
    engine = found.get('mmengine', (None, None))[0]
    if engine == REQUIREMENTS['mmengine'].project:
        # an upstream environment: a fork would overwrite its files
        wanted = (REQUIREMENTS[m] for m in modules)
        return 'pip install ' + ' '.join(f'"{w.project}>={w.floor}"'
                                         for w in wanted)
    return ('pip install "mmcsan[mminstall]" '
            '(in a clone: pip install -e ".[mminstall]")')


def _check_floor(module: str, dist: str, version: str) -> None:
    floor = REQUIREMENTS[module].floor
    if release(version) < release(floor):
        raise DependencyError(
            f'{dist} {version} is installed, but mmcsan needs {module} >= '
            f'{floor}. Cure: pip install --upgrade "{dist}>={floor}"')


def require(*modules: str, purpose: str = 'mmcsan') -> None:
    """Fail with the cure unless packages are there and new enough.

    Args:
        *modules (str): Import names, each a key of ``REQUIREMENTS``.
        purpose (str): What needs them; named in the error.

    Raises:
        DependencyError: If a package is missing or below its floor.
    """
    found = installed_versions({*modules, 'mmengine'})
    missing = [m for m in modules if m not in found]
    if missing:
        raise DependencyError(
            f'{purpose} needs {", ".join(missing)}, which cannot be found. '
            f'Cure: {_install_command(missing, found)}')
    for module in modules:
        dist, version = found[module]
        if version is not None:
            _check_floor(module, dist, version)


def check_requirements() -> None:
    """Check every package of ``REQUIREMENTS`` without importing any.

    Whatever is installed must reach its floor. One warning names all that is
    above the tested range.

    Raises:
        DependencyError: If a needed package is missing, or any is below its
            floor.
    """
    found = installed_versions(REQUIREMENTS)
    missing = [
        m for m, wanted in REQUIREMENTS.items()
        if wanted.needed and m not in found
    ]
    if missing:
        raise DependencyError(
            f'mmcsan needs {", ".join(missing)}, which cannot be found. '
            f'Cure: {_install_command(missing, found)}')
    untested = []
    for module, (dist, version) in found.items():
        if version is None:
            continue
        _check_floor(module, dist, version)
        tested = release(REQUIREMENTS[module].tested)
        if release(version)[:len(tested)] > tested:
            untested.append(f'{dist} {version} (tested up to '
                            f'{REQUIREMENTS[module].tested}.x)')
    if untested:
        warnings.warn(
            f'newer than what mmcsan {__version__} was tested with: '
            f'{", ".join(untested)}', stacklevel=3)
