"""The base of attribution methods, and the checks of their arguments."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeVar

import numpy as np

from embgrad.attribution.passes import Passes
from embgrad.common.arrays import to_numpy
from embgrad.common.metrics import lengths
from embgrad.common.options import lists_choices
from embgrad.errors import EmbgradError, brief, did_you_mean, quote

__all__ = [
    *("Contributions", "GradientMethod", "Method", "choose_method", "describe_arguments"),
    *("expect_choice", "expect_count", "expect_number", "plain"),
]

M = TypeVar("M")

#: The most numbers of an array that the description of a method lists; of a longer one it has the shape and the digest.
MOST_NUMBERS: Final = 64


@dataclass(frozen=True)
class Contributions:
    """The contributions that a method computes for a batch.

    Attributes:
        scores: the contribution of each position, float64, (example, position).
        values: the contribution of each dimension, (example, position, dim), or None.
        baseline_objective: L of each example at the baseline, (example,), or None.
        delta: the error of completeness, (example,), or None.
        error: a bound of the error of completeness that does not let errors of one stretch of the path cancel those of another,
            (example,); None for the size of `delta`.
        notes: further entries of the method's description in the provenance.
    """

    scores: np.ndarray
    values: np.ndarray | None = None
    baseline_objective: np.ndarray | None = None
    delta: np.ndarray | None = None
    error: np.ndarray | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)


class Method(ABC):
    """An attribution method: a frozen data class of its arguments, which are checked when it is made."""

    @abstractmethod
    def contributions(self, passes: Passes, tokenizer: Any) -> Contributions:
        """Return the contributions to the objectives of a batch, with one baseline at most.

        Args:
            tokenizer: knows the ids of special tokens; None where there is none.
        """

    def mean_contributions(self, passes: Passes, tokenizer: Any) -> Contributions:
        """Return the contributions, the mean over the baselines where there are several."""
        made = [method.contributions(passes, tokenizer) for method in self.by_baseline()]
        return made[0] if len(made) == 1 else _mean(made)

    def by_baseline(self) -> list[Method]:
        """Return the method with each of its baselines alone; itself where it has one or none."""
        for name in ("baseline", "replacement"):
            if lists_choices(getattr(self, name, None)):
                own = {entry.name: getattr(self, entry.name) for entry in fields(self)}  # type: ignore[arg-type]
                return [type(self)(**{**own, name: baseline}) for baseline in own[name]]
        return [self]

    def describe(self) -> dict[str, Any]:
        """Return the class name and the arguments as JSON-compatible values."""
        return describe_arguments(self)


def _mean(made: Sequence[Contributions]) -> Contributions:
    """Return the mean of contributions; steps are added up, and exact is what each is exactly."""

    def mean(name: str) -> np.ndarray | None:
        arrays = [getattr(entry, name) for entry in made]
        return None if arrays[0] is None else np.mean(arrays, axis=0)

    scores = mean("scores")
    assert scores is not None
    errors = [entry.error if entry.error is not None or entry.delta is None else np.abs(entry.delta) for entry in made]
    together: Mapping[str, Callable[..., np.ndarray]] = {"steps_taken": np.sum, "exact": np.all}
    notes = {name: together[name]([entry.notes[name] for entry in made], axis=0).tolist() for name in made[0].notes}
    return Contributions(
        scores,
        mean("values"),
        mean("baseline_objective"),
        mean("delta"),
        None if errors[0] is None else np.mean([error for error in errors if error is not None], axis=0),
        notes,
    )


class GradientMethod(Method):
    """A method whose contributions can be computed at any values of the point, so that `SmoothGrad` can average them."""

    def prepare(self, passes: Passes, tokenizer: Any) -> Any:
        """Return what the method computes once for all values, such as its baseline."""
        return None

    @abstractmethod
    def values_at(self, passes: Passes, inputs: np.ndarray, prepared: Any) -> np.ndarray:
        """Return the contributions at other values of the point, float64, of their shape.

        Args:
            inputs: the values, (row, position, dim), of the whole batch or of several such.
            prepared: see the method `prepare`.
        """

    @property
    def by_length(self) -> bool:
        """Return whether the score of a position is the L2 norm of its values, not their sum."""
        return False

    def scores(self, values: np.ndarray) -> np.ndarray:
        """Return the scores of positions, float64, (example, position)."""
        wide = np.asarray(values, np.float64)
        return lengths(wide) if self.by_length else np.asarray(wide.sum(-1))


def describe_arguments(method: Any) -> dict[str, Any]:
    """Return the class name and the arguments of a method, a data class, as JSON-compatible values."""
    return {
        "class": type(method).__name__,
        **{entry.name: plain(getattr(method, entry.name)) for entry in fields(method)},
    }


def plain(value: Any) -> Any:
    """Return an argument of a method as a JSON-compatible value."""
    if isinstance(value, Method):
        return value.describe()
    if hasattr(value, "shape"):
        array = to_numpy(value)
        if array.size <= MOST_NUMBERS:
            return array.tolist()
        digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
        return {"shape": list(array.shape), "dtype": str(array.dtype), "sha256": digest}
    return [plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def choose_method(method: Any, base: type[Any], known: Mapping[str, type[M]], example: str) -> M:
    """Return a method, or the method of a name with its defaults.

    Args:
        base: the base class of the methods.
        example: a method as the user would write it, for the message.
    """
    if isinstance(method, base):
        made: M = method
        return made
    if isinstance(method, str) and method in known:
        return known[method]()
    if isinstance(method, type) and issubclass(method, base):
        raise EmbgradError(
            f"the method is the class {method.__name__}: expected an instance; write {method.__name__}(...)"
        )
    raise EmbgradError(
        f"method is {brief(method)}: expected a method, such as {example}, or one of {quote(known)}."
        f"{did_you_mean(str(method), list(known))}"
    )


def expect_count(value: Any, name: str, least: int = 1) -> None:
    """Raise an error for a value that is not a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise EmbgradError(f"{name} is {brief(value)}: expected a whole number of at least {least}")


def expect_number(value: Any, name: str) -> None:
    """Raise an error for a value that is not a finite number of at least 0."""
    is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not is_number or not np.isfinite(value) or value < 0:
        raise EmbgradError(f"{name} is {brief(value)}: expected a finite number of at least 0")


def expect_choice(value: Any, name: str, choices: Any) -> None:
    """Raise an error for a value that is not one of the choices."""
    if not isinstance(value, str) or value not in choices:
        raise EmbgradError(
            f"{name} is {brief(value)}: expected one of {quote(choices)}.{did_you_mean(str(value), list(choices))}"
        )
