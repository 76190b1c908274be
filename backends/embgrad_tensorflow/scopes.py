"""Find the scopes of a graph: layers, by the names of their operations, and in a trace the calls of modules marked in it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from embgrad.backend import INPUT, OUTPUT, Entry, Scope, entering, leaving, users_of
from embgrad_tensorflow.tracing import MARK, TracedCall

__all__ = ["scopes_of_calls", "scopes_of_names"]


def scopes_of_names(
    names: Sequence[str], inputs: Sequence[Sequence[Entry]], heads: Sequence[Entry], carries: Callable[[Entry], bool]
) -> list[Scope]:
    """Return the scopes that a floating-point tensor leaves, in the order in which they are entered.

    Weights do not count among what enters a scope. A tensor goes by the name of the operation that computed it, wherever
    that lies, so that the tensor that leaves one layer is the one that enters the next.

    Args:
        inputs: by operation the values that it takes.
        heads: the values that the graph returns.
        carries: returns whether a value is floating-point and no weight.
    """
    users = users_of(inputs, heads)
    members: dict[str, list[int]] = defaultdict(list)
    for number, name in enumerate(names):
        for path in _paths(name):
            members[path].append(number)
    inner = {path for name in names for path in list(_paths(name))[:-1]}
    holding = {path.rpartition("/")[0] for path in inner}
    operations = set(names)
    result = []
    for path, numbers in members.items():
        leaves = leaving(numbers, users, carries) if path in inner else None
        if leaves is not None:
            kind = re.sub(r"\d+", "#", path)
            is_operation = path in operations and path not in holding
            enters = entering(numbers, inputs, carries)
            result.append(Scope(path, kind, frozenset(numbers), enters, leaves, is_operation=is_operation))
    return result


def scopes_of_calls(
    names: Sequence[str], inputs: Sequence[Sequence[Entry]], calls: Sequence[TracedCall]
) -> list[Scope]:
    """Return the marked calls as scopes: what takes the mark of an input lies inside, what takes that of an output does not."""
    marks = {
        (int(mark[1]), mark[2]): number for number, name in enumerate(names) if (mark := MARK.search(name)) is not None
    }
    users: dict[int, set[int]] = defaultdict(set)
    for number, taken in enumerate(inputs):
        for maker, _ in taken:
            users[maker].add(number)
    result = []
    for index, call in enumerate(calls):
        begins, ends = marks.get((index, INPUT)), marks[index, OUTPUT]
        inside = frozenset([ends, *(() if begins is None else users[begins])])
        enters = None if begins is None else (begins, 0)
        result.append(Scope(call.path, call.kind, inside, enters, (ends, 0), call.occurrence))
    return result


def _paths(name: str) -> Iterator[str]:
    """Yield the scopes that an operation lies in, the outermost first, and its own name, which can be a scope's too."""
    parts = name.split("/")
    for count in range(1, len(parts) + 1):
        yield "/".join(parts[:count])
