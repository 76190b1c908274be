"""The options of a call of `gradients`, checked once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np

from embgrad.backend.protocol import BoundModel, Call
from embgrad.common.options import expect_flags
from embgrad.common.progress import Progress
from embgrad.engine.interventions import check_changes
from embgrad.errors import BatchError, PointError, UnsupportedError, did_you_mean
from embgrad.model_points.points import WORD
from embgrad.objectives.native import NativeObjective
from embgrad.objectives.objectives import Objective

__all__ = [
    "GradientOptions",
    "Keywords",
    "OfForward",
    "check_options",
    "expect_one_name",
    "expect_pads",
]


class OfForward(TypedDict, total=False):
    """The keyword arguments of `evaluate`, for type checkers."""

    tokenizer: Any
    max_length: int | None
    call: Call | None
    training: bool
    override: Mapping[str, Any] | None
    add: Mapping[str, Any] | None
    batch_size: int | None
    progress: Progress | bool | None


class Keywords(OfForward, total=False):
    """The keyword arguments of `gradients` beside `at`, for type checkers."""

    pads: str
    split: bool
    edit: Mapping[str, Callable[[np.ndarray], np.ndarray | None]] | None
    check: bool
    compile: bool


@dataclass(frozen=True)
class GradientOptions:
    """The options of `gradients` that hold for each of its sub-batches, and for each batch of a stream.

    Attributes:
        names: the points to read, as the user named them.
        single: whether the user named a single point, and gets its result instead of a dict.
        pads: "keep" or "zero", the gradient at padding.
        changes: by option ("override", "add", "edit") the changes by the points' names.
    """

    names: tuple[str, ...] = (WORD,)
    single: bool = True
    training: bool = False
    pads: str = "keep"
    split: bool = False
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    check: bool = False
    compile: bool = False

    @property
    def changed(self) -> tuple[str, ...]:
        """The names of the points at which a value or a gradient is changed, each once."""
        return tuple(dict.fromkeys(name for changes in self.changes.values() for name in changes))

    @property
    def named(self) -> tuple[str, ...]:
        """The names of all points, to read or to change, each once."""
        return tuple(dict.fromkeys([*self.names, *self.changed]))

    def expect_supported(self, bound: BoundModel, objective: Objective | NativeObjective) -> None:
        """Refuse options that the backend does not support, before anything runs."""
        wanted: dict[str, Any] = {
            "training": self.training,
            "split": self.split,
            "native": isinstance(objective, NativeObjective),
            "compile": self.compile,
            **self.changes,
        }
        for ability, is_wanted in wanted.items():
            if is_wanted:
                bound.expect_ability(ability)
        if self.split and isinstance(objective, NativeObjective) and objective.scalar:
            raise UnsupportedError(
                "split=True pulls back each example's objective by itself, and a Scalar objective has one for the whole batch: "
                "give an embgrad objective, or a function of shape (example,)"
            )


def check_options(
    at: str | Sequence[str],
    *,
    training: bool,
    pads: str = "keep",
    split: bool = False,
    override: Any = None,
    add: Any = None,
    edit: Any = None,
    check: bool = False,
    compile: bool = False,
) -> GradientOptions:
    """Return the options of `gradients`, checked; the defaults are those of `gradients`."""
    names = _names(at)
    expect_pads(pads)
    expect_flags(training=training, split=split, check=check, compile=compile)
    changes = check_changes(override=override, add=add, edit=edit)
    return GradientOptions(names, isinstance(at, str), training, pads, split, changes, check, compile)


def expect_pads(pads: Any) -> None:
    """Raise BatchError for a value of `pads` that is neither "keep" nor "zero"."""
    if not isinstance(pads, str) or pads not in ("keep", "zero"):
        raise BatchError(f"pads is {pads!r}: expected 'keep' or 'zero'.{did_you_mean(str(pads), ('keep', 'zero'))}")


def expect_one_name(at: Any, instead: str) -> None:
    """Refuse a value of `at` that is not the name of one point.

    Args:
        instead: the end of the message, which says what to do for several points.
    """
    if not isinstance(at, str) or not at:
        raise PointError(f"at is {at!r}: expected the name of a point, such as 'word'; {instead}")


def _names(at: Any) -> tuple[str, ...]:
    if isinstance(at, str) and at:
        return (at,)
    names = (at,) if isinstance(at, str) or not isinstance(at, Iterable) else tuple(at)
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) != len(names):
        raise PointError(f"at is {at!r}: expected the name of a point, such as 'word', or several different ones")
    return names
