"""The expected gradients: the suite's architectures in NumPy, differentiated by complex steps.

An analytic function has f(x + ih) = f(x) + ih f'(x) + O(h²), so that the imaginary part over h is the derivative, exact to
rounding for h = 1e-30. One forward pass makes a step in each entry at once, along a leading axis. The oracle shares no code with
embgrad.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

STEP: Final = 1e-30

#: The points of each architecture, as `at` names them.
POINTS: Final[Mapping[str, tuple[str, ...]]] = {
    "mean": ("word",),
    "hidden": ("word",),
    "probabilities": ("word",),
    "masked": ("word",),
    "positions": ("word",),
    "named": ("word",),
    "twice": ("word#0", "word#1"),
    "two_tables": ("word#0", "word#1"),
    "flat": ("word",),
    "time_major": ("word",),
    "scaled": ("word",),
    "positional": ("word", "position"),
    "dropout": ("word",),
    "layers": ("word", "position", "embeddings", "layer.0", "layer.1", "layer.2", "layer.-1", "layer.-2", "layer.-3"),
    "repeated": ("word", "position", "embeddings", "layer.0", "layer.1", "layer.2", "layer.-1", "layer.-2", "layer.-3"),
    "tied": ("word",),
    "mixing": ("word",),
}


@dataclass(frozen=True)
class Changes:
    """Changes at points, by name: values or functions that override or add, and factors of the gradient."""

    override: Mapping[str, Any] = field(default_factory=dict)
    add: Mapping[str, Any] = field(default_factory=dict)
    edit: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Derivatives:
    """Derivatives at one point or with respect to one weight.

    Attributes:
        each: ∂L_i/∂e, (example i, *shape of e).
        value: e after changes.
        before: `each` before an edit at the point itself.
    """

    each: np.ndarray
    value: np.ndarray
    before: np.ndarray

    @property
    def summed(self) -> np.ndarray:
        return np.asarray(self.each.sum(0))

    @property
    def own(self) -> np.ndarray:
        return np.stack([gradient[number] for number, gradient in enumerate(self.each)])

    @property
    def own_before(self) -> np.ndarray:
        return np.stack([gradient[number] for number, gradient in enumerate(self.before)])


@dataclass(frozen=True)
class Question:
    """An architecture, its inputs, and a function from its outputs, (direction, example, ...), to L, (direction, example)."""

    architecture: str
    weights: Mapping[str, np.ndarray]
    ids: np.ndarray
    mask: np.ndarray | None
    objective: Callable[[Mapping[str, np.ndarray]], np.ndarray]
    changes: Changes = field(default_factory=Changes)


class Oracle:
    def __init__(self, question: Question) -> None:
        self.question = question

    def values(self) -> np.ndarray:
        return self._run(_Pass(self.question)).real[0]

    def outputs(self) -> dict[str, np.ndarray]:
        outputs = _FORWARDS[self.question.architecture](_Pass(self.question))
        return {name: value.real[0] for name, value in outputs.items()}

    def at(self, point: str) -> Derivatives:
        point = canonical(point)
        plain = _Pass(self.question)
        self._run(plain)
        value = plain.values[point]
        each, before = (
            self._stepped(value.shape, lambda steps, early=early: _Pass(self.question, at=(point, steps, early)))
            for early in (True, False)
        )
        return Derivatives(each, value, before)

    def of(self, weight: str) -> Derivatives:
        value = np.asarray(self.question.weights[weight], np.float64)
        each = self._stepped(value.shape, lambda steps: _Pass(self.question, weight=(weight, steps)))
        return Derivatives(each, value, each)

    def _stepped(self, shape: tuple[int, ...], run: Callable[[np.ndarray], _Pass]) -> np.ndarray:
        size = int(np.prod(shape))
        steps = np.eye(size).reshape(size, *shape) * 1j * STEP
        slopes = np.broadcast_to(self._run(run(steps)).imag / STEP, (size, len(self.question.ids)))
        return np.ascontiguousarray(slopes.T.reshape(len(self.question.ids), *shape))

    def _run(self, forward: _Pass) -> np.ndarray:
        return np.asarray(self.question.objective(_FORWARDS[self.question.architecture](forward)), np.complex128)


def canonical(point: str) -> str:
    """Return a point's name with its layer counted from the front."""
    if point.startswith("layer.-"):
        return f"layer.{3 + int(point.removeprefix('layer.'))}"
    return point


class _Pass:
    """A forward pass over all directions at once, which lie along the first axis of every array."""

    def __init__(
        self,
        question: Question,
        at: tuple[str, np.ndarray, bool] | None = None,
        weight: tuple[str, np.ndarray] | None = None,
    ) -> None:
        self.ids = question.ids
        self.real = np.ones(self.ids.shape) if question.mask is None else np.asarray(question.mask, np.float64)
        self.values: dict[str, np.ndarray] = {}
        self._weights = {name: np.asarray(value, np.complex128)[None] for name, value in question.weights.items()}
        if weight is not None:
            self._weights[weight[0]] = self._weights[weight[0]] + weight[1]
        self._at = at
        self._changes = question.changes

    def rows(self, table: str, ids: np.ndarray) -> np.ndarray:
        return self._weights[table][:, ids]

    def point(self, name: str, value: np.ndarray) -> np.ndarray:
        for option, join in (("override", lambda _, new: new), ("add", np.add)):
            changes = {canonical(key): change for key, change in getattr(self._changes, option).items()}
            if name in changes:
                new = changes[name](value.real.copy()) if callable(changes[name]) else changes[name]
                value = np.asarray(join(value, np.broadcast_to(new, value.shape)), np.complex128)
        factor = next((factor for key, factor in self._changes.edit.items() if canonical(key) == name), 1.0)
        self.values[name] = value.real[0]
        steps = self._at[1] if self._at is not None and self._at[0] == name else 0.0
        if self._at is None or self._at[2]:
            value = value + steps
            return value.real + 1j * value.imag * factor
        return value.real + 1j * value.imag * factor + steps  # a step that the edit does not see

    def mean(self, value: np.ndarray) -> np.ndarray:
        return np.asarray(value.mean(2))

    def linear(self, value: np.ndarray, weight: str, bias: str) -> np.ndarray:
        """Return value @ weight + bias for (direction, ..., dim)."""
        kernel, offset = self._weights[weight], self._weights[bias]
        between = (1,) * (value.ndim - 3)
        kernel = kernel.reshape(len(kernel), *between, *kernel.shape[1:])
        return np.asarray(value @ kernel + offset.reshape(len(offset), *((1,) * (value.ndim - 2)), -1))

    def head(self, value: np.ndarray) -> dict[str, np.ndarray]:
        return {"logits": self.linear(value, "W", "b")}

    def bent(self, value: np.ndarray) -> np.ndarray:
        return np.tanh(self.linear(value, "W1", "b1"))

    def words(self, name: str = "word", table: str = "E") -> np.ndarray:
        return self.point(name, self.rows(table, self.ids))

    def position_rows(self) -> np.ndarray:
        return self.point("position", self.rows("E2", np.tile(np.arange(self.ids.shape[1]), (len(self.ids), 1))))


def _softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.real.max(-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(-1, keepdims=True))


def _mean(run: _Pass) -> dict[str, np.ndarray]:
    return run.head(run.mean(run.words()))


def _hidden(run: _Pass) -> dict[str, np.ndarray]:
    return run.head(run.bent(run.mean(run.words())))


def _probabilities(run: _Pass) -> dict[str, np.ndarray]:
    return {"logits": _softmax(_mean(run)["logits"])}


def _masked(run: _Pass) -> dict[str, np.ndarray]:
    share = (run.real / run.real.sum(1, keepdims=True))[..., None]
    return run.head((run.words() * share).sum(2))


def _positions(run: _Pass) -> dict[str, np.ndarray]:
    return run.head(run.bent(run.words()))


def _named(run: _Pass) -> dict[str, np.ndarray]:
    sequence = run.bent(run.words())
    pooled = run.mean(sequence)
    return {"sequence": sequence, "last_hidden_state": sequence, "pooled": pooled, "pooler_output": pooled}


def _twice(run: _Pass) -> dict[str, np.ndarray]:
    return run.head(run.mean(run.words("word#0")) + run.mean(np.tanh(run.words("word#1"))))


def _two_tables(run: _Pass) -> dict[str, np.ndarray]:
    return run.head(run.mean(run.words("word#0")) + run.mean(np.tanh(run.words("word#1", "E2"))))


def _scaled(run: _Pass) -> dict[str, np.ndarray]:
    return run.head(run.mean(3 * run.words()))


def _positional(run: _Pass) -> dict[str, np.ndarray]:
    return run.head(run.mean(np.tanh(run.words() + run.position_rows())))


def _layers(run: _Pass) -> dict[str, np.ndarray]:
    hidden = run.point("embeddings", run.words() + run.position_rows())
    for number in range(3):
        hidden = run.point(f"layer.{number}", hidden + run.bent(hidden))
    return run.head(run.mean(hidden))


def _tied(run: _Pass) -> dict[str, np.ndarray]:
    table = run._weights["E"]
    return {"logits": run.bent(run.words()) @ np.swapaxes(table, 1, 2)[:, None]}


def _mixing(run: _Pass) -> dict[str, np.ndarray]:
    means = run.mean(run.words())
    return run.head(means - means.mean(1, keepdims=True))


_FORWARDS: Final[Mapping[str, Callable[[_Pass], dict[str, np.ndarray]]]] = {
    "mean": _mean, "hidden": _hidden,
    "probabilities": _probabilities,
    "masked": _masked, "positions": _positions, "named": _named, "twice": _twice,
    "two_tables": _two_tables,
    "flat": _mean, "time_major": _mean, "scaled": _scaled,
    "positional": _positional,
    "dropout": _hidden, "layers": _layers, "repeated": _layers, "tied": _tied, "mixing": _mixing,
}  # fmt: skip
