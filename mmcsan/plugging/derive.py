"""Classes made at run time: a mixin on top of the class of an instance."""
import types
from functools import lru_cache


class Derived:
    """An instance whose class is made of a mixin and the class it had.

    It is copied and pickled by what its class was made of, as no module holds
    that class.
    """

    made_of = None

    def __reduce_ex__(self, protocol):
        return _blank, self.made_of, self.__dict__.copy()


@lru_cache(maxsize=None)
def derive(mixin: type, base: type) -> type:
    """The class with a mixin on top of another class.

    Args:
        mixin (type): A subclass of :class:`Derived`.
        base (type): Any class.

    Returns:
        type: The same one for the same arguments.
    """
    names = dict(
        made_of=(mixin, base),
        __module__=base.__module__,
        __doc__=base.__doc__)
    return types.new_class(f'Plugged{base.__name__}', (mixin, base),
                           exec_body=lambda space: space.update(names))


def _blank(mixin: type, base: type):
    cls = derive(mixin, base)
    return cls.__new__(cls)
