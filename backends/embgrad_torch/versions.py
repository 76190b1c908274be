"""Tells that a dict was not written to since it was last looked at, without a look at what it holds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from torch._C._dynamo import guards

__all__ = ["HAVE_VERSIONS", "versions_of"]


def _unknown(mapping: Any) -> object:
    """A version that no other equals: the dict must be looked at."""
    return object()


#: Whether dicts have versions.
HAVE_VERSIONS: Final = sys.version_info < (3, 12) and hasattr(guards, "dict_version")

#: Up to Python 3.11 each dict has a number that no other has had, nor the same dict before the last change (PEP 509). PyTorch
#: reads it for its compiler. Later it would have to watch the dict, which stays watched; there the dicts are compared.
_version_of: Final[Callable[[Any], Any]] = guards.dict_version if HAVE_VERSIONS else _unknown

_PLAIN: Final = frozenset({dict})


def versions_of(mappings: Sequence[Any], *, plain: bool = False) -> list[Any]:
    """For each dict what changes when it is written to, and may change even so.

    Args:
        mappings: the dicts.
        plain: whether they are known to be `dict`, and no kind of it.
    """
    # The order of an OrderedDict is no part of its version, and what only stands for a dict, as in TorchScript, has none.
    known = plain or set(map(type, mappings)) <= _PLAIN
    return list(map(_version_of if known else _unknown, mappings))
