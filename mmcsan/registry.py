"""The registries of mmcsan: children of mmengine's, filled when first asked.

``type='mmcsan.X'`` builds from the registries of mmdet, mmseg and mmpretrain
without ``custom_imports``: mmengine imports this module when it meets the
scope, and ``locations`` name what to import for the classes.
"""
import difflib
from contextlib import contextmanager
from typing import Iterable, Optional

from mmengine import registry as mmengine_registry
from mmengine.registry import Registry

from .version import REQUIREMENTS, require

SCOPE = 'mmcsan'


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """The message for a name that is not among the known ones.

    Args:
        kind (str): What is named, e.g. 'attention' or 'arch of Hiera'.
        name (str): The unknown name.
        known (Iterable[str]): The names that exist.

    Returns:
        str: A message that lists the known names and, where one comes close,
        suggests it.
    """
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    hint = f' Did you mean {close[0]!r}?' if close else ''
    return (f'unknown {kind} {name!r}.{hint} '
            f'Known: {", ".join(known) or "none"}')


class _Registry(Registry):
    """A registry whose errors list the known names and name the cures."""

    def import_from_location(self) -> None:
        """Import the modules that register classes here.

        Raises:
            DependencyError: If one of them needs a codebase that is not
                installed.
        """
        try:
            super().import_from_location()
        except ModuleNotFoundError as e:
            package = (e.name or '').split('.')[0]
            if package in REQUIREMENTS:
                require(package, purpose=f'the {self.name}s of {self.scope}')
            raise

    def get(self, key: str) -> Optional[type]:
        """Get a class by its name.

        Args:
            key (str): A name with or without the scope, or the full path of a
                class.

        Returns:
            type: The class.

        Raises:
            KeyError: If there is no such name; it lists the known ones.
        """
        found = super().get(key)
        name = key.split('.', 1)[1] if key.startswith(f'{SCOPE}.') else key
        if found is None and '.' not in name:
            raise KeyError(unknown_name(self.name, name, self.module_dict))
        return found

    def __contains__(self, key: str) -> bool:
        try:
            return self.get(key) is not None
        except KeyError:
            return False


class _RootRegistry(_Registry):
    """A registry of mmcsan alone, which no codebase has a sibling of."""

    @contextmanager
    def switch_scope_and_registry(self, scope: Optional[str]):
        """Stay in this registry whatever the default scope is.

        mmengine would look for the sibling of the running codebase, find
        none and warn at each attention built.
        """
        yield self


def _child(name: str, *locations: str) -> Registry:
    parent = getattr(mmengine_registry, name)
    return _Registry(
        parent.name, parent=parent, scope=SCOPE, locations=list(locations))


MODELS = _child('MODELS', 'mmcsan.backbones', 'mmcsan.necks',
                'mmcsan.plugging')
ATTENTIONS = _RootRegistry(
    'attention', scope=SCOPE, locations=['mmcsan.attentions'])
WEIGHT_INITIALIZERS = _child('WEIGHT_INITIALIZERS', 'mmcsan.checkpoints')
HOOKS = _child('HOOKS', 'mmcsan.engine')
OPTIM_WRAPPER_CONSTRUCTORS = _child('OPTIM_WRAPPER_CONSTRUCTORS',
                                    'mmcsan.engine')
DATASETS = _child('DATASETS', 'mmcsan.datasets.coco')
TRANSFORMS = _child('TRANSFORMS', 'mmcsan.datasets')
