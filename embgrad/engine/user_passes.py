"""The user's own passes, which `capture` listens to and `perturbed` changes: their ids, their points' axes, and the contexts."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from embgrad.errors import (
    EmbgradError,
    EmbgradWarning,
    PointNotReachedError,
    UnknownPointError,
    UnsupportedError,
    did_you_mean,
    quote,
)
from embgrad.inputs.batch import TokenBatch
from embgrad.model_points.axes import Arrangement, of_lookup, of_module
from embgrad.model_points.gather import only_window
from embgrad.model_points.names import LAYER_ROLE
from embgrad.model_points.points import (
    UNNAMED_TABLE,
    WORD,
    Layout,
    Lookup,
    ModuleCall,
    Point,
    layout_is_open,
    split_name,
)
from embgrad.model_points.roles import EMBEDDINGS, POSITION, TYPE
from embgrad.toolkit.signature import NAMES

__all__ = [
    *("PassAxes", "UserPassListener", "UserPasses"),
    *("batch_of", "expect_known", "expect_one_model", "only_children_called"),
]


class UserPassListener(Protocol):
    """The part of a listener to the user's passes that its context calls."""

    passes: int

    def close(self, *, raised: bool) -> None:
        """End the context.

        Args:
            raised: whether the loop ended by an exception, which the user then gets.
        """
        ...


T = TypeVar("T", bound=UserPassListener)


class UserPasses(AbstractContextManager[T], Generic[T]):
    """A context around the user's own passes, open from its entry to its exit, or until nothing refers to it any more.

    Args:
        listener: listens to the passes; the context yields it.

    Attributes:
        opened_as: how the user opens such a context, for messages.
    """

    opened_as: ClassVar[str]
    _state = "new"

    def __init__(self, name: str, listener: T, listening: AbstractContextManager[None]) -> None:
        self._name = name
        self._listener = listener
        self._listening = listening

    def __enter__(self) -> T:
        if self._state != "new":
            raise EmbgradError(
                f"this {self._name} is already {self._state}, and can be opened once: open a new one, as in "
                f"`{self.opened_as}`"
            )
        self._listening.__enter__()
        self._state = "open"
        return self._listener

    def __exit__(self, cls: Any, error: Any, traceback: Any) -> None:
        self._state = "closed"
        self._listening.__exit__(cls, error, traceback)
        self._listener.close(raised=cls is not None)

    def __del__(self) -> None:
        if self._state == "open":
            self._state = "closed"
            self._listening.__exit__(None, None, None)
            warnings.warn(
                f"a {self._name} was left open, and nobody holds it any more: it is closed now, after "
                f"{self._listener.passes} forward pass(es). Open it as `{self.opened_as}`",
                EmbgradWarning,
                stacklevel=2,
            )


class PassAxes:
    """The axes of one point's tensors in the user's passes, as far as earlier passes show them.

    Args:
        consequence: the end of the warning for a batch that does not show them: what is right even so, or what to do.
    """

    def __init__(self, at: str, consequence: str) -> None:
        self._at = at
        self._consequence = consequence
        self._is_transposed: bool | None = None
        self._in_order = True

    def look_at(self, reached: Sequence[Point], batch: TokenBatch) -> None:
        """Take from the points of a pass on a batch whether the model takes examples and positions in the batch's order."""
        lookups = [point.lookup for point in reached if point.lookup is not None]
        words = [lookup for lookup in lookups if lookup.layout is not None]
        layouts = [_layout_alone(lookup, batch) for lookup in words]
        is_known = any(layout is not None and layout.is_in_order for layout in layouts)
        self._in_order = is_known or not (layouts or any(_changes_ids(lookup, batch) for lookup in lookups))

    def arrangement(
        self,
        record: Lookup | ModuleCall,
        shape: Sequence[int],
        batch: TokenBatch,
        *,
        by_role: bool,
        lookups: Sequence[Lookup] = (),
    ) -> Arrangement:
        """Return the arrangement of the point's tensor.

        Args:
            lookups: the lookups of the pass so far.
        """
        if isinstance(record, Lookup):
            lookup = self._with_layout(record, batch)
            if lookup.layout is None and self._at == WORD:
                raise PointNotReachedError(
                    f"the indices of {record} hold the ids of the model's call, of shape {batch.shape}, in another order, which "
                    "a single pass does not show. Call the model with ids in that order, or use embgrad.gradients"
                )
            ordered = any(other.layout is not None and other.layout.is_in_order for other in lookups)
            return of_lookup(self._at, lookup, batch, by_role=lookup.layout is not None, in_order=ordered)
        axis = self._example_axis(shape, batch) if self._in_order else None
        return of_module(self._at, shape, batch, axis, by_role=by_role, in_order=self._in_order)

    def _with_layout(self, lookup: Lookup, batch: TokenBatch) -> Lookup:
        """Return the lookup with the layout of earlier passes, where the ids do not determine it."""
        if lookup.layout is None:
            return lookup
        if not lookup.layout.determined:
            return replace(lookup, layout=_layout_alone(lookup, batch))
        if not layout_is_open(lookup.indices, batch.ids):
            self._is_transposed = lookup.layout.transposed
            return lookup
        return replace(
            lookup, layout=replace(lookup.layout, transposed=self._positions_first("ids", lookup.layout.transposed))
        )

    def _example_axis(self, shape: Sequence[int], batch: TokenBatch) -> int | None:
        """Return which of the first two axes holds the examples, from earlier passes, where both axes are equally long."""
        examples, positions = batch.shape
        pair = tuple(shape[:2])
        if examples != positions:
            if pair in ((examples, positions), (positions, examples)):
                self._is_transposed = pair != (examples, positions)
            return None
        if examples == 1 or pair != (examples, positions):
            return None
        return int(self._positions_first(f"shape {tuple(shape)}", otherwise=False))

    def _positions_first(self, what: str, otherwise: bool) -> bool:
        """Return whether positions come before examples; warn where no earlier pass has shown it."""
        if self._is_transposed is None:
            warnings.warn(
                f"the {what} of a batch at {self._at!r} is the same by example and by position, and no earlier batch showed "
                f"which axis holds the examples: the first axis is assumed to. {self._consequence}",
                EmbgradWarning,
                stacklevel=7,
            )
            return otherwise
        return self._is_transposed


def _changes_ids(lookup: Lookup, batch: TokenBatch) -> bool:
    """Return whether a lookup's indices are probably the ids after a change, such as a shift: they hold most of them.

    Positions and types are the same for each example, or others than the ids.
    """
    if lookup.indices.size != batch.ids.size or lookup.sliced:
        return False
    held = np.isin(np.unique(batch.ids[batch.real]), lookup.indices).mean()
    rows = lookup.indices.reshape(len(batch), -1)
    return bool(held >= 0.5 and (len(batch) == 1 or (rows != rows[0]).any()))


def _layout_alone(lookup: Lookup, batch: TokenBatch) -> Layout | None:
    """Return the layout of a lookup of the ids as far as the indices alone show it: a probe would be a pass of embgrad's."""
    is_known = lookup.layout is None or lookup.layout.determined
    return lookup.layout if is_known else only_window(lookup, batch)


def batch_of(arguments: Mapping[str, Any], *, word: bool) -> TokenBatch:
    """Return the batch with which the model was called: the argument with a name of ids, or else the first argument.

    Args:
        word: whether the ids are needed; without them, a batch of one token stands in otherwise.
    """
    arrays = {name: np.asarray(value) for name, value in arguments.items()}
    many = {name: value for name, value in arrays.items() if value.ndim >= 1 and value.size and value.min() >= 0}
    name = next((name for name in NAMES["ids"] if name in many), next(iter(many), None))
    if name is None:
        if not word:
            return TokenBatch([[0]])
        raise PointNotReachedError(
            f"the model was called without token ids: its integer arguments are {quote(arguments)}; expected token ids among "
            f"them. Pass them, or name another point than {WORD!r}"
        )
    ids = many[name].reshape(-1, many[name].shape[-1])
    others: dict[str, Any] = {}
    for field in ("mask", "types"):
        value = next((many[other] for other in NAMES[field] if other in many and other != name), None)
        if value is not None and value.shape == many[name].shape and (field == "types" or np.isin(value, (0, 1)).all()):
            others[field] = value.reshape(ids.shape)
    return TokenBatch(ids, **others)


def expect_one_model(model: Any, instead: str) -> None:
    """Refuse a sequence of parts.

    Args:
        instead: what happens to a model's calls, and what to open for each part.
    """
    if isinstance(model, (list, tuple)):
        raise UnsupportedError(
            f"the model is a sequence of {len(model)} parts: expected one model, whose calls are {instead} for each part"
        )


def expect_known(at: str, paths: Collection[str]) -> None:
    """Raise UnknownPointError before the loop begins for a name that cannot mean any point."""
    path = split_name(at).path
    roles = (WORD, POSITION, TYPE, EMBEDDINGS)
    if path not in (*roles, UNNAMED_TABLE) and not LAYER_ROLE.fullmatch(path) and path not in paths:
        raise UnknownPointError(
            f"there is no point {at!r}: expected a role, of {quote((*roles, 'layer.0'))}, or the path of a module or table, of "
            f"{quote(paths)}.{did_you_mean(path, [*roles, 'layer.0', 'layer.-1', *paths])}"
        )


def only_children_called(model: str, paths: Collection[str], when: str, verb: str, call: str) -> str:
    """Return the message for a model that was never called, while children of it were.

    Args:
        when: the time in which they were called, in words.
        verb: what the user does with a model.
        call: how the user does it, with braces for a path.
    """
    children = [path for path in paths if not any(path.startswith(f"{other}.") for other in paths)]
    if len(children) == 1:
        return (
            f"the forward of {model} was never called while {when}, and that of its child {children[0]!r} was: {verb} that "
            f"child, as in {call.format(children[0])}"
        )
    return (
        f"the forward of {model} was never called while {when}, and those of its children {quote(children)} were: {verb} the "
        f"child that takes the ids, as in {call.format(children[0])}"
    )
