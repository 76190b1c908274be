"""Puts back what blocks keep in attributes from call to call: a hidden state, a cache, a list of maps."""

from __future__ import annotations

import collections
import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from embgrad_gluon.importing import import_mxnet

__all__ = ["Attributes"]

MAPPINGS: Final = frozenset({dict, collections.OrderedDict, collections.defaultdict})
SEQUENCES: Final = frozenset({list, collections.deque})


class Attributes:
    """The attributes of blocks that are not Gluon's own, and what those of them hold that are containers."""

    def __init__(self, blocks: Iterable[Any]) -> None:
        ours = _of_gluon()
        self._found: list[tuple[dict[str, Any], dict[str, Any]]] = []
        held: dict[int, Any] = {}
        for block in blocks:
            own = vars(block)
            found = {name: own[name] for name in own.keys() - ours}
            self._found.append((own, found))
            held.update((id(one), one) for one in found.values() if type(one) in MAPPINGS or type(one) in SEQUENCES)
        self._held = [(one, one.copy()) for one in held.values()]

    def put_back(self) -> None:
        """All are what they were, but for blocks and parameters: a net builds itself in its first call."""
        ours = _of_gluon()
        for own, found in self._found:
            for name in own.keys() - ours - found.keys():
                if not _is_part(own[name]):
                    del own[name]
            for name, value in found.items():
                now = own.get(name)
                if now is not value and not (_is_part(now) or _is_part(value)):
                    own[name] = value
        for container, before in self._held:
            if not _is_same(container, before):
                container.clear()
                container.update(before) if type(container) in MAPPINGS else container.extend(before)


@functools.cache
def _of_gluon() -> frozenset[str]:
    """The attributes that every block has, which Gluon itself sees to."""
    return frozenset(vars(import_mxnet().gluon.HybridBlock(prefix="")))  # with a name of its own, none is counted up


def _is_part(value: object) -> bool:
    gluon = import_mxnet().gluon
    if type(value) in MAPPINGS:
        value = list(value.values())  # type: ignore[attr-defined]
    if type(value) in SEQUENCES or isinstance(value, tuple):
        return any(map(_is_part, value))  # type: ignore[call-overload]
    return isinstance(value, (gluon.Block, gluon.Parameter))


def _is_same(now: Any, before: Any) -> bool:
    """Whether containers hold the same objects. None of the objects is asked whether it is equal."""
    pairs: Sequence[tuple[Any, Any]] = [(now, before)]
    if isinstance(now, Mapping):
        pairs = [(list(now), list(before)), (list(now.values()), list(before.values()))]
    return all(len(one) == len(other) and all(map(operator.is_, one, other)) for one, other in pairs)
