"""What a forward pass reaches: taken down in order, checked, and told by name."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from embgrad.errors import AmbiguousPointError, BatchError, EmbgradError, PointNotReachedError, listed
from embgrad.forward.points import INPUT, OUTPUT, WORD, Lookup, ModuleCall, Point, layout_of, split_name
from embgrad.forward.roles import points_of
from embgrad.inputs.batch import TokenBatch

__all__ = ["PointWatch"]

#: Up to so many numbers Python compares them before NumPy has begun.
FEW: Final = 64


class PointWatch:
    """Takes down the lookups and module calls of one forward pass, and says which of them are asked for.

    A backend calls `see` at each lookup, before the lookup is made where it can; `enter` and `leave` around the calls of
    the modules that are watched; and `resolve` after the forward pass. One watch serves one forward pass.

    Args:
        batch: what the model is run on.
        names: the points asked for: "word", or keys of points, see `Point.key`. None to take down everything, to learn
            what there is.
        times: by paths of modules and tables how often an earlier pass came by them, see `Request.times`.

    Attributes:
        batch: what the model is run on.
        lookups: the lookups, in order.
        calls: the calls of watched modules, in the order in which they began.
        everything: whether everything is taken down.
        modules: the paths of the modules whose calls must be told; of no interest where `everything` is.
        counted: the paths of the modules whose other calls must be counted.
    """

    def __init__(
        self, batch: TokenBatch, names: Collection[str] | None, times: Mapping[str, int] | None = None
    ) -> None:
        self.lookups: list[Lookup] = []
        self.calls: list[ModuleCall] = []
        self.everything = names is None
        self.modules = frozenset(one.path for one in map(split_name, names or ()) if one.side is not None)
        self.counted = frozenset(path[:-1] for path in times or () if path.endswith(":"))
        self.batch = batch
        self._names = tuple(names or ())
        self._times = times
        self._open: list[int] = []
        self._ended = 0
        self._seen: Counter[str] = Counter()
        self._reached: set[str] = set()
        self._tokens = _Tokens()

    @property
    def hears_modules(self) -> bool:
        """Whether the call of any module must be told or counted."""
        return self.everything or bool(self.modules) or bool(self.counted)

    def see(
        self, path: str, indices: np.ndarray, rows: int, dim: int, padding: int | None = None, *, inside: bool = False
    ) -> str | None:
        """Take down a lookup; its key where it may be asked for, so that the backend keeps hold of its output, else None.

        Args:
            path: the attribute path of the table's owner, or `UNNAMED_TABLE`.
            indices: the rows looked up, whole numbers of any shape.
            rows: the table's rows.
            dim: the length of a row.
            padding: the row that the table's owner declares to be padding.
            inside: whether the framework has seen to it that no index is outside.

        Raises:
            BatchError: an index outside the table.
        """
        whole = np.asarray(indices)
        if not inside:
            _check_inside(path, whole, rows, self.batch.ids)
        lookup = Lookup(
            path=path,
            occurrence=self._count(path),
            indices=whole.astype(np.int64),
            rows=int(rows),
            dim=int(dim),
            layout=layout_of(whole, self.batch.ids),
            padding=padding,
            parent=self._open[-1] if self._open else None,
        )
        self.lookups.append(lookup)
        key = lookup.key
        self._reached.add(key)
        return key if key in self._names or (lookup.layout is not None and WORD in self._names) else None

    def gave(self, tensor: Any) -> None:
        """What the last lookup gave, where everything is taken down."""
        if self.everything:
            self.lookups[-1] = replace(self.lookups[-1], token=self._tokens[tensor])

    def enter(self, path: str, kind: str, given: Any, shape: Sequence[int], also: Sequence[str] = ()) -> str | None:
        """Take down that a module's call begins; the key of its input where that is asked for, else None.

        Args:
            path: the module's attribute path.
            kind: what modules of one sort have in common, such as their class's name.
            given: the first floating tensor among its arguments, see `embgrad.common.pytree`; None for none.
            shape: that tensor's shape.
            also: further names of the module.
        """
        call = ModuleCall(path, self._count(f"{path}:"), kind, self._open[-1] if self._open else None, tuple(also))
        if given is not None:
            call.source_shape = tuple(map(int, shape))
            call.source = self._tokens[given] if self.everything else None
        self._open.append(len(self.calls))
        self.calls.append(call)
        return self._reach(call, INPUT, given)

    def leave(self, gave: Any, shape: Sequence[int]) -> str | None:
        """Take down that the call begun last ends; the key of its output where that is asked for, else None.

        Args:
            gave: the first floating tensor in what it returned; None for none.
            shape: that tensor's shape.
        """
        call = self.calls[self._open.pop()]
        call.ended = self._ended
        self._ended += 1
        if gave is not None:
            call.token_shape = tuple(map(int, shape))
            call.token = self._tokens[gave] if self.everything else None
        return self._reach(call, OUTPUT, gave)

    def count(self, path: str) -> None:
        """Take down the call of a module that is only counted."""
        self._count(f"{path}:")

    def broke(self) -> None:
        """Take down that the call begun last ends by an exception."""
        self._open.pop()

    def wants(self, key: str) -> bool:
        """Whether the point with this key is asked for."""
        return key in self._names

    def points(self) -> list[Point]:
        """What was reached, in the order in which it was."""
        return points_of(self.batch, self.lookups, self.calls)

    def found(self, key: str) -> Lookup | ModuleCall:
        """The lookup or call that a key means."""
        name = split_name(key)
        if name.side is None:
            return next(one for one in self.lookups if one.path == name.path and one.occurrence == name.occurrence)
        return next(one for one in self.calls if one.path == name.path and one.occurrence == name.occurrence)

    def resolve(self, hint: str = "") -> dict[str, str]:
        """For each name asked for the key of its point.

        Args:
            hint: what the backend knows of why a point may not have been reached, for the message.

        Raises:
            PointNotReachedError: no lookup's indices are the batch's ids, or a point was not reached.
            AmbiguousPointError: several lookups' indices are.
        """
        self._expect_times()
        return {name: self._word(hint) if name == WORD else self._expect_reached(name, hint) for name in self._names}

    def expect_some(self, kinds: Iterable[str], failure: Exception) -> None:
        """Say of a pass that broke off before any lookup that the model has none, where none of its modules is an embedding.

        Args:
            kinds: the names of its modules' classes.
            failure: what was raised.

        Raises:
            PointNotReachedError: so it is.
        """
        if self.lookups or isinstance(failure, EmbgradError):
            return
        named = list(dict.fromkeys(kinds))
        if not any("embed" in kind.lower() for kind in named):
            raise PointNotReachedError(
                f"the model raised {type(failure).__name__} before it looked anything up, and none of its modules, "
                f"{listed(named)}, is an embedding: expected a model of texts, which looks up the ids that it is given"
            ) from failure

    @property
    def times(self) -> dict[str, int]:
        """By the paths of the modules and tables that the pass came by how often it did, those of modules with a colon."""
        return dict(self._seen)

    def _expect_times(self) -> None:
        if self._times is None:
            return
        other = next(
            (path for path in {*self._times, *self._seen} if self._times.get(path, 0) != self._seen[path]), None
        )
        if other is not None:
            raise PointNotReachedError(
                f"the forward pass came by {other.rstrip(':')!r} {self._seen[other]} time(s), and an earlier one "
                f"{self._times.get(other, 0)} time(s): expected a model that makes the same calls each time"
            )

    def _count(self, path: str) -> int:
        before = self._seen[path]
        self._seen[path] = before + 1
        return before

    def _reach(self, call: ModuleCall, side: str, tensor: Any) -> str | None:
        key = call.key(side)
        if tensor is None:
            return None
        self._reached.add(key)
        return key if key in self._names else None

    def _word(self, hint: str) -> str:
        words = [lookup for lookup in self.lookups if lookup.layout is not None]
        if not words:
            raise PointNotReachedError(not_looked_up(self.batch, self.lookups, hint))
        if len(words) > 1:
            raise AmbiguousPointError(several_words(words), words)
        return words[0].key

    def _expect_reached(self, key: str, hint: str) -> str:
        if key not in self._reached:
            raise PointNotReachedError(
                f"the forward pass did not come by the point {key!r}, which an earlier one on this batch did: expected a "
                f"model that makes the same calls each time; name another point in at=...{' ' if hint else ''}{hint}"
            )
        return key


def not_looked_up(batch: TokenBatch, lookups: Sequence[Lookup], hint: str = "") -> str:
    """What is said where no lookup is `word`."""
    seen = "; ".join(str(lookup) for lookup in lookups) or "none"
    return (
        f"the model made no lookup whose indices are the batch's ids, of shape {batch.shape}; lookups seen: {seen}. Expected "
        "the model to look up the ids that it is given: if it changes them first, give it the changed ones, or name the table "
        f"with at=...{' ' if hint else ''}{hint}"
    )


def several_words(words: Sequence[Lookup]) -> str:
    """What is said where several lookups are `word`."""
    several = ", ".join(f"{WORD}#{number} = {lookup}" for number, lookup in enumerate(words))
    return f"{WORD!r} fits {len(words)} lookups: {several}; name one of them, or give a list of names to get each"


class _Tokens:
    """One number a tensor, for as long as it lives and is not written into, where that can be told."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, int, Any]] = {}
        self._next = 0

    def __getitem__(self, tensor: Any) -> int:
        reference, token, version = self._known.get(id(tensor), (None, 0, None))
        if reference is not None and reference() is tensor and version == _version(tensor):
            return token
        self._next += 1
        self._known[id(tensor)] = (_reference(tensor), self._next, _version(tensor))
        return self._next


def _version(tensor: Any) -> Any:
    """What changes when a tensor is written into, as PyTorch counts it; None where it is not counted."""
    try:
        return getattr(tensor, "_version", None)
    except RuntimeError:  # made in inference mode
        return None


def _reference(tensor: Any) -> Any:
    try:
        return weakref.ref(tensor)
    except TypeError:  # no weak references to it: it is kept, or another could get its id
        return lambda: tensor


def _are_inside(indices: np.ndarray, rows: int) -> bool:
    if indices.dtype == np.int64 and indices.size <= FEW:
        numbers = indices.ravel().tolist()
        return bool(min(numbers) >= 0 and max(numbers) < rows)
    if indices.dtype == np.int64:  # what is negative is large where it is read without a sign
        return bool(indices.view(np.uint64).max() < rows)
    return bool(indices.min() >= 0 and indices.max() < rows)


def _check_inside(path: str, indices: np.ndarray, rows: int, ids: np.ndarray) -> None:
    if not indices.size or _are_inside(indices, rows):
        return
    layout = layout_of(indices, ids)
    arranged = indices if layout is None else layout.indices(indices)
    wrong = np.argwhere(~((arranged >= 0) & (arranged < rows)))  # so that NaN is wrong too
    first = tuple(int(i) for i in wrong[0])
    expected = f"table {path!r} has {rows} rows: expected 0 to {rows - 1}"
    more = f" ({len(wrong)} such in all)" if len(wrong) > 1 else ""
    if layout is not None:
        raise BatchError(
            f"id {arranged[first]} at example {first[0]}, position {first[1]} is outside the table{more}: {expected}; use "
            "the tokenizer that belongs to this model"
        )
    raise BatchError(
        f"the model looks up index {arranged[first]} (at {first} of indices of shape {indices.shape}), which is outside "
        f"the table{more}: {expected}; is the batch longer than the model's positions, or a type beyond its types?"
    )
