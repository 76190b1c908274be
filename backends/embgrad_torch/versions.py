"""Tells that a dict was not written to since it was last looked at, without a look at what it holds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from torch._C._dynamo import guards

__all__ = ["settings_of", "versions_of"]


def _unknown(mapping: Any) -> object:
    """A version that no other equals: the dict must be looked at."""
    return object()


#: Up to Python 3.11 each dict has a number that no other has had, nor the same dict before the last change (PEP 509). PyTorch
#: reads it for its compiler. Later it would have to watch the dict, which stays watched; there the dicts are compared.
_version_of: Final[Callable[[Any], Any]] = (
    getattr(guards, "dict_version", _unknown) if sys.version_info < (3, 12) else _unknown
)

_PLAIN: Final = frozenset({dict})


def settings_of(mappings: Sequence[Any]) -> list[Any]:
    """For each dict what changes when it is written to, and stays otherwise but for chance."""
    if sys.version_info < (3, 12):
        return versions_of(mappings)
    return [tuple(map(id, mapping.values())) for mapping in mappings]


def versions_of(mappings: Sequence[Any]) -> list[Any]:
    """For each dict what changes when it is written to, and may change even so."""
    # The order of an OrderedDict is no part of its version, and what only stands for a dict, as in TorchScript, has none.
    known = set(map(type, mappings)) <= _PLAIN
    return list(map(_version_of if known else _unknown, mappings))
