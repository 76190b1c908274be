"""The record of one forward pass: its lookups and module calls, checked as they happen and addressed by name."""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from embgrad.errors import AmbiguousPointError, BatchError, EmbgradError, PointNotReachedError, quote
from embgrad.inputs.batch import TokenBatch
from embgrad.model_points.descent import Reached
from embgrad.model_points.points import (
    INPUT,
    OUTPUT,
    UNNAMED_TABLE,
    WORD,
    Layout,
    Lookup,
    ModuleCall,
    OtherUse,
    Way,
    could_be_positions,
    layout_of,
    may_hold,
    split_name,
)
from embgrad.model_points.roles import SPELLED, points_of

__all__ = ["PassRecorder"]


class PassRecorder:
    """The record of one forward pass: its lookups and module calls, and which of them are requested points.

    A backend calls `see` at each lookup, before the lookup is computed where it can; `enter` and `leave` around each call of
    a watched module; and `resolve` after the forward pass. Use a new `PassRecorder` for each forward pass.

    Args:
        batch: the batch that the model is run on.
        names: the requested points: "word", or keys of points, see `Point.key`. None records every point, to list them.
        times: for each path of a module or table, how often an earlier pass reached it, see `Request.times`. None skips
            the comparison with an earlier pass.
        order: the paths of the modules that an earlier pass called, see `Request.order`; None skips that comparison.
        record: record every point, beside the requested ones, which the pass need not reach; see `Request.record`.

    Attributes:
        batch: the batch that the model is run on.
        lookups: the recorded lookups, in order.
        calls: the recorded module calls, in the order in which they began.
        everything: whether every point is recorded.
        lists: whether every point is recorded and none is requested.
        modules: the paths of the modules of requested points, whose calls the backend must report; it reports those of all
            modules where `everything` is true.
        counted: the paths of the modules whose calls the backend need only count, with `count`.
    """

    def __init__(
        self,
        batch: TokenBatch,
        names: Collection[str] | None,
        times: Mapping[str, int] | None = None,
        *,
        order: Sequence[str] | None = None,
        record: bool = False,
    ) -> None:
        self.lookups: list[Lookup] = []
        self.calls: list[ModuleCall] = []
        self.lists = names is None
        self.everything = self.lists or record
        self.modules = frozenset(name.path for name in map(split_name, names or ()) if name.side is not None)
        self.counted = frozenset(path[:-1] for path in times or () if path.endswith(":"))
        self.batch = batch
        self._names = tuple(names or ())
        self._times = times
        self._expected_order = order
        self._order: list[str] | None = []
        self._others: dict[OtherUse, None] = {}
        self._open: list[int] = []
        self._ended = 0
        self._counts: Counter[str] = Counter()
        self._reached: set[str] = set()
        self._tokens = _Tokens()
        self._equalled = False  # whether the indices of a lookup were the ids

    @property
    def needs_modules(self) -> bool:
        """True where the backend must report or count the calls of some modules."""
        return self.everything or bool(self.modules) or bool(self.counted)

    @property
    def needs_lookups(self) -> bool:
        """True where a lookup is a requested point."""
        return self.everything or any(split_name(name).side is None for name in self._names)

    def see(
        self,
        path: str,
        indices: np.ndarray,
        rows: int,
        dim: int,
        padding: int | None = None,
        *,
        inside: bool = False,
        sliced: bool = False,
    ) -> str | None:
        """Record a lookup, after checking its indices against the table.

        Args:
            path: the attribute path of the table's owner, or `UNNAMED_TABLE`.
            indices: the rows looked up, integers of any shape.
            rows: the number of rows in the table.
            dim: the length of a row.
            padding: the row that the table's owner declares as padding.
            inside: whether the framework has already checked that all indices are inside the table.
            sliced: whether it is a slice of consecutive rows, of which a backend reports those with a row for each position.

        Returns:
            The lookup's key where the lookup may be a requested point, so that the backend keeps its output; else None.

        Raises:
            BatchError: an index is outside the table.
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
            layout=None if sliced else self._layout(whole),
            padding=padding,
            parent=self._open[-1] if self._open else None,
            sliced=sliced,
        )
        self.lookups.append(lookup)
        key = lookup.key
        self._reached.add(key)
        return key if key in self._names or (lookup.layout is not None and WORD in self._names) else None

    def _layout(self, indices: np.ndarray) -> Layout | None:
        """Return the layout of a lookup's indices: undetermined where they hold the ids, and no indices equal the ids so far."""
        layout = layout_of(indices, self.batch.ids)
        if layout is not None and not self._equalled:
            self._equalled = True
            undetermined = (lookup.layout is not None and not lookup.layout.determined for lookup in self.lookups)
            for number in [number for number, is_open in enumerate(undetermined) if is_open]:
                self.lookups[number] = replace(self.lookups[number], layout=None)
        if layout is None and not self._equalled and may_hold(indices, self.batch.ids, self.batch.real):
            return Layout(self.batch.shape, transposed=False, determined=False)
        return layout

    def see_other(
        self,
        operation: str,
        path: str,
        indices: np.ndarray,
        shape: Sequence[int],
        dtype: str,
        *,
        axis: int = 0,
        way: Way = "selection",
    ) -> None:
        """Record that the model selects entries of an array in a way that is no lookup of rows with a gradient.

        Where the indices are the batch's ids, the real lookup of the ids may be this one: then no other lookup is `word`. A
        backend reports arrays that do not depend on the batch, such as integer tables, and lookups along another axis; it need
        not report those that have one number for each index.

        Args:
            operation: the framework's operation, for the message.
            path: the array's attribute path, or `UNNAMED_TABLE`.
            indices: the entries selected, integers of any shape; they may be repeated along the first or the last axis.
            shape: the array's shape.
            dtype: the name of the array's dtype.
            axis: the axis of the array that the indices count along.
            way: how the array is used, see `OtherUse`.
        """
        ids = self.batch.ids
        if layout_of(_without_repetition(np.asarray(indices), ids.size), ids) is None:
            return
        if could_be_positions(ids) and any(pattern.search(path.lower()) for pattern in SPELLED.values()):
            return  # the indices are the positions or the types
        self._others[OtherUse(operation, path, tuple(map(int, shape)), dtype, axis % len(shape), way)] = None

    def record_output(self, tensor: Any) -> None:
        """Record the output of the last lookup, where every point is recorded."""
        if self.everything:
            self.lookups[-1] = replace(self.lookups[-1], token=self._tokens[tensor])

    def replace_tensor(self, tensor: Any, new: Any) -> None:
        """Record that the model continues with another tensor, so that it is known as the same one."""
        if self.everything:
            self._tokens.put(new, self._tokens[tensor])

    def enter(self, path: str, kind: str, tensor: Any, shape: Sequence[int], also: Sequence[str] = ()) -> str | None:
        """Record that a module's call begins.

        Args:
            path: the module's attribute path.
            kind: a name that modules of the same type share, such as their class's name.
            tensor: the first floating tensor among its arguments, see `embgrad.common.pytree`; None where there is none.
            shape: that tensor's shape.
            also: further names of the module.

        Returns:
            The key of the call's input where that is a requested point, else None.
        """
        call = ModuleCall(path, self._count(f"{path}:"), kind, self._open[-1] if self._open else None, tuple(also))
        if tensor is not None:
            call.source_shape = tuple(map(int, shape))
            call.source = self._tokens[tensor] if self.everything else None
        self._open.append(len(self.calls))
        self.calls.append(call)
        if self._order is not None:
            self._order.append(path)
        return self._reach(call, INPUT, tensor)

    def leave(self, result: Any, shape: Sequence[int]) -> str | None:
        """Record that the innermost open call ends.

        Args:
            result: the first floating tensor in the call's result; None where there is none.
            shape: that tensor's shape.

        Returns:
            The key of the call's output where that is a requested point, else None.
        """
        call = self.calls[self._open.pop()]
        call.ended = self._ended
        self._ended += 1
        if result is not None:
            call.token_shape = tuple(map(int, shape))
            call.token = self._tokens[result] if self.everything else None
        return self._reach(call, OUTPUT, result)

    def count(self, path: str, *, in_order: bool = True) -> None:
        """Count a call of a module that is counted but not recorded.

        Args:
            path: the module's attribute path.
            in_order: whether the model's calls are counted in the order in which it makes them.
        """
        self._count(f"{path}:")
        if not in_order:
            self._order = None
        elif self._order is not None:
            self._order.append(path)

    def exit_on_error(self) -> None:
        """Close the innermost open call after it raised an exception."""
        self._open.pop()

    def wants(self, key: str) -> bool:
        """Return whether the point with this key is requested."""
        return key in self._names

    def points(self) -> Reached:
        """Return the points that the pass reached, lookups first, each in order."""
        lookups = self.find_lookups()
        return Reached(points_of(self.batch, lookups, self.calls), self.batch, lookups, self.calls)

    def find_lookups(self) -> list[Lookup]:
        """Return the lookups in order; those of the ids have their rivals, see `Lookup.rival`."""
        return [
            lookup if lookup.layout is None else replace(lookup, rival=self._rival(lookup)) for lookup in self.lookups
        ]

    def record_of(self, key: str) -> Lookup | ModuleCall:
        """Return the recorded lookup or call that a key identifies."""
        name = split_name(key)
        if name.side is None:
            return next(
                lookup for lookup in self.lookups if lookup.path == name.path and lookup.occurrence == name.occurrence
            )
        return next(call for call in self.calls if call.path == name.path and call.occurrence == name.occurrence)

    def resolve(self, hint: str = "") -> dict[str, str]:
        """Return the key of the point that each requested name means.

        A pass that records every point need not reach those that are requested: the result has the keys of the others alone, and
        those of all lookups of the ids in place of "word".

        Args:
            hint: what the backend knows about why a point may not have been reached; appended to the error message.

        Raises:
            PointNotReachedError: no lookup's indices are the batch's ids, the ids were also used in a way that is no lookup, a
                point was not reached, or the pass reached a module or table more or less often than an earlier pass did.
            AmbiguousPointError: the indices of several lookups are the batch's ids.
        """
        if self.everything:
            wanted = [lookup.key for lookup in self.lookups if lookup.layout is not None and WORD in self._names]
            return {key: key for key in dict.fromkeys([*wanted, *self._names]) if key in self._reached}
        self._expect_times()
        return {name: self._word(hint) if name == WORD else self._expect_reached(name, hint) for name in self._names}

    def expect_some(self, kinds: Iterable[str], failure: Exception) -> None:
        """Raise an error if the pass failed before any lookup and none of the model's modules is an embedding.

        Args:
            kinds: the class names of the model's modules.
            failure: the exception that the model raised.

        Raises:
            PointNotReachedError: no lookup was recorded, and no class name contains "embed".
        """
        if self.lookups or isinstance(failure, EmbgradError):
            return
        named = list(dict.fromkeys(kinds))
        if not any("embed" in kind.lower() for kind in named):
            raise PointNotReachedError(
                f"the model raised {type(failure).__name__} before any lookup, and none of its modules, {quote(named)}, is "
                "an embedding: expected a text model, which looks up its ids in a table"
            ) from failure

    @property
    def times(self) -> dict[str, int]:
        """The number of times that the pass reached each module and table, by path; the paths of modules end in a colon."""
        return dict(self._counts)

    def _expect_times(self) -> None:
        if self._times is None:
            return
        path = next(
            (path for path in {*self._times, *self._counts} if self._times.get(path, 0) != self._counts[path]), None
        )
        if path is not None:
            raise PointNotReachedError(
                f"the forward pass reached {path.rstrip(':')!r} {self._counts[path]} time(s), but an earlier pass reached it "
                f"{self._times.get(path, 0)} time(s): expected a model that makes the same calls each time"
            )
        if None not in (self._order, self._expected_order) and self._order != [*(self._expected_order or ())]:
            raise PointNotReachedError(
                "the forward pass called the model's modules in another order than an earlier pass: expected a model that makes "
                "the same calls each time"
            )

    def _count(self, path: str) -> int:
        before = self._counts[path]
        self._counts[path] = before + 1
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
            uses = "; ".join(map(str, self._others))
            hint = f"{hint}{' ' if hint else ''}The ids were used otherwise: {uses}" if uses else hint
            raise PointNotReachedError(not_looked_up(self.batch, self.lookups, hint))
        word, *more = words
        if more:
            raise AmbiguousPointError(several_words(words), words)
        refused = replace(word, rival=self._rival(word))
        if refused.rival is not None:
            raise PointNotReachedError(with_rival(refused))
        return word.key

    def _rival(self, word: Lookup) -> OtherUse | None:
        """Return another use of the ids that may be the real lookup of the ids; None where there is none.

        Whole numbers may be features of the tokens, such as their characters, unless there are more of them for each token than
        the lookup has numbers, as in a quantised table beside its scales.
        """
        use = next((use for use in self._others if use.entries > (1 if use.floating else word.dim)), None)
        if use is not None:
            return use
        rows, dim = word.rows, word.dim
        larger = [
            lookup for lookup in self.lookups if lookup.layout is None and lookup.rows == rows and lookup.dim > dim
        ]
        if not larger or could_be_positions(self.batch.ids):
            return None
        ids = np.unique(self.batch.ids)
        each = next((lookup for lookup in larger if np.array_equal(np.unique(lookup.indices), ids)), None)
        if each is None:
            return None
        return OtherUse("a lookup", each.path, (each.rows, each.dim), "float", 0, "distinct")

    def _expect_reached(self, key: str, hint: str) -> str:
        if key not in self._reached:
            raise PointNotReachedError(
                f"the forward pass did not reach the point {key!r}, but an earlier pass on this batch did. Expected a model that "
                f"makes the same calls each time; name another point in at=...{' ' if hint else ''}{hint}",
                key,
            )
        return key


def not_looked_up(batch: TokenBatch, lookups: Sequence[Lookup], hint: str = "") -> str:
    """Return the message for a pass in which no lookup is `word`."""
    recorded = "; ".join(str(lookup) for lookup in lookups) or "none"
    tables = [lookup for lookup in lookups if lookup.path != UNNAMED_TABLE]
    path = max(tables, key=lambda lookup: lookup.indices.size).path if tables else ""
    named = f": {path!r} for the rows, or '{path}:output' where a module goes on to change them" if tables else ""
    return (
        f"the model made no lookup whose indices are the batch's ids, of shape {batch.shape}; lookups seen: {recorded}. Expected "
        "the model to look up the ids that it is given: if it changes them first, give it the changed ones, or name a point "
        f"with at=...{named}{'. ' if hint and named else ' ' if hint else ''}{hint}"
    )


def with_rival(lookup: Lookup) -> str:
    """Return the message for a lookup of the ids that is not `word`, since the ids were also used in a way that is no lookup."""
    return (
        f"the lookup {lookup} may not be the model's embedding of the ids, which were also used otherwise: {lookup.rival}. "
        "Pass a model that looks the ids up as rows of a floating-point matrix (as it was before quantisation, say), or name the "
        f"table whose gradient you want, as in at={lookup.path!r}"
    )


def several_words(words: Sequence[Lookup]) -> str:
    """Return the message for a pass in which several lookups are `word`."""
    several = ", ".join(f"{WORD}#{number} = {lookup}" for number, lookup in enumerate(words))
    return f"{WORD!r} fits {len(words)} lookups: {several}; name one of them, or give a list of names to get each"


class _Tokens:
    """A mapping from tensors to numbers: the same number for as long as a tensor lives and is not modified in place.

    In-place modification is noticed only where the framework counts it, see `_version`.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, int, Any]] = {}
        self._numbers = itertools.count()

    def put(self, tensor: Any, token: int) -> None:
        """Set the number of a tensor to that of another."""
        self._known[id(tensor)] = (_reference(tensor), token, _version(tensor))

    def __getitem__(self, tensor: Any) -> int:
        reference, token, version = self._known.get(id(tensor), (None, 0, None))
        if reference is not None and reference() is tensor and version == _version(tensor):
            return token
        token = next(self._numbers)
        self._known[id(tensor)] = (_reference(tensor), token, _version(tensor))
        return token


def _version(tensor: Any) -> Any:
    """Return PyTorch's count of in-place modifications of a tensor; None where there is no such count."""
    try:
        return getattr(tensor, "_version", None)
    except RuntimeError:  # made in inference mode
        return None


def _reference(tensor: Any) -> Any:
    try:
        return weakref.ref(tensor)
    except TypeError:  # it has no weak references: keep it alive, or another tensor could get its id
        return lambda: tensor


def _without_repetition(indices: np.ndarray, size: int) -> np.ndarray:
    """Return the indices without the axis along which they are repeated, such as for each entry of a row."""
    if indices.size == size or indices.ndim < 2 or not indices.size:
        return indices
    for single, repeated in ((indices[..., 0], indices[..., :1]), (indices[0], indices[:1])):
        if single.size == size and bool((indices == repeated).all()):
            return single
    return indices


def _are_inside(indices: np.ndarray, rows: int) -> bool:
    if indices.dtype == np.int64:  # negative numbers, read as unsigned ones, are large
        return bool(indices.view(np.uint64).max() < rows)
    return bool(indices.min() >= 0 and indices.max() < rows)


def _check_inside(path: str, indices: np.ndarray, rows: int, ids: np.ndarray) -> None:
    if not indices.size or _are_inside(indices, rows):
        return
    layout = layout_of(indices, ids)
    arranged = indices if layout is None else layout.indices(indices)
    wrong = np.argwhere(~((arranged >= 0) & (arranged < rows)))  # negated, so that NaN counts as outside too
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
