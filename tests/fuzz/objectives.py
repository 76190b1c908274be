"""Objectives of calls, embgrad's own and functions, each with its formula in NumPy; and broken ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

import embgrad
from tests.fuzz.drawing import Draw
from tests.fuzz.nonsense import disguised, nonsense
from tests.fuzz.owners import drawn_error

Outputs = Mapping[str, np.ndarray]

#: The named outputs of each architecture; the first is the default.
OUTPUTS: Final[Mapping[str, tuple[str, ...]]] = {"named": ("sequence", "last_hidden_state", "pooled", "pooler_output")}


@dataclass(frozen=True)
class DrawnObjective:
    """An objective.

    Attributes:
        text: its Python code.
        argument: the objective as it is passed to embgrad.
        formula: computes L, (direction, example), from the outputs.
        scalar: True if the result's objective has shape ().
    """

    text: str
    argument: Any
    formula: Callable[[Outputs], np.ndarray]
    scalar: bool = False


@dataclass(frozen=True)
class Reading:
    """The rows of an output that an objective reads; its output and position are those of `embgrad.Objective`."""

    output: str | None
    position: Any
    real: np.ndarray

    def counted(self, outputs: Outputs) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows, (direction, example, position, classes), and the mask of those read, (example, position)."""
        rows = outputs[self.output or "logits"]
        if rows.ndim == 3:
            return rows[:, :, None], np.ones((rows.shape[1], 1), bool)
        if self.position is None:
            return rows, self.real
        counts = np.zeros(self.real.shape, bool)
        for example, position in enumerate(np.broadcast_to(self.position, len(self.real))):
            last = np.flatnonzero(self.real[example])[-1]
            counts[example, position if position >= 0 else last + 1 + position] = True
        return rows, counts

    def summed(self, outputs: Outputs, value: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        rows, counts = self.counted(outputs)
        return np.asarray((value(rows) * counts).sum(2))


def drawn_objective(
    draw: Draw, architecture: str, classes: int, batch: embgrad.TokenBatch, harness: Any = None, smooth: bool = False
) -> DrawnObjective:
    """Return an objective that fits the architecture.

    Args:
        classes: the number of entries per row of the default output.
        harness: the backend's harness for functions of native outputs; None excludes these.
        smooth: True excludes cross-entropies of probabilities.
    """
    if architecture == "probabilities" and not smooth and draw.chance(0.6):
        labels = draw.integers(0, classes - 1, len(batch))
        return _cross_entropy(draw, labels, Reading(None, None, batch.real), "probabilities")
    per_position = architecture in ("positions", "tied")
    plain = architecture not in ("named", "probabilities", "positions", "tied")
    kinds = {"Logit": 1.0, "Margin": 1.0 if classes > 1 else 0.0, "Sum": 1.0, "Projection": 1.5}
    kinds["CrossEntropy"] = 3.0 if classes > 1 and architecture not in ("named", "probabilities") else 0.0
    if harness is not None and plain:
        kinds |= {"native": 0.7, "Scalar": 0.4}
    kind = draw.weighted(kinds)
    if kind in ("native", "Scalar"):
        return _native(draw, kind, classes, harness)
    output = draw.choice(OUTPUTS["named"]) if architecture == "named" else draw.choice([None, None, "logits"])
    position = None
    if (per_position or output in ("sequence", "last_hidden_state")) and draw.chance(0.6):
        position = _position(draw, batch)
    reading = Reading(output, position, batch.real)
    if kind == "CrossEntropy":
        whole = per_position and position is None
        labels = draw.integers(0, classes - 1, batch.shape if whole else len(batch))
        if whole:
            labels[draw.random.random(batch.shape) < 0.3] = -100
        return _cross_entropy(draw, labels, reading)
    return _linear(draw, kind, classes, len(batch), reading)


def _position(draw: Draw, batch: embgrad.TokenBatch) -> Any:
    """Return a column that is real in all examples, a position from the end, or a position per example."""
    shared = np.flatnonzero(batch.real.all(0))
    kind = draw.choice(["column", "end", "each"])
    if kind == "column" and len(shared):
        return int(draw.choice(shared))
    if kind == "end":  # counted in columns, some of which are padding in masks with holes
        lasts = [np.flatnonzero(row)[-1] for row in batch.real]
        fitting = [
            back
            for back in range(1, min(lasts) + 2)
            if all(row[last + 1 - back] for row, last in zip(batch.real, lasts, strict=True))
        ]
        return -draw.choice(fitting)
    return np.array([draw.choice(np.flatnonzero(row)) for row in batch.real])


def _options(reading: Reading) -> tuple[dict[str, Any], str]:
    options = {"output": reading.output, "position": reading.position}
    argument = {name: value for name, value in options.items() if value is not None}
    spelled = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in argument.items()}
    return argument, "".join(f", {name}={value!r}" for name, value in spelled.items())


def _cross_entropy(draw: Draw, labels: np.ndarray, reading: Reading, of: str = "logits") -> DrawnObjective:
    options, said = _options(reading)
    one_hot = np.eye(max(int(labels.max()) + 1, 1))[np.maximum(labels, 0)]
    counts = (labels != -100).astype(float)

    def formula(outputs: Outputs) -> np.ndarray:
        rows, _ = reading.counted(outputs)
        chosen = np.zeros((*labels.shape, rows.shape[-1]))
        chosen[..., : one_hot.shape[-1]] = one_hot
        here, there = (chosen, counts) if labels.ndim == 2 else (chosen[:, None], counts[:, None])
        if of == "probabilities":
            return reading.summed(outputs, lambda rows: -np.log((rows * here).sum(-1)) * there)

        def value(rows: np.ndarray) -> np.ndarray:
            shifted = rows - rows.real.max(-1, keepdims=True)
            return np.asarray((np.log(np.exp(shifted).sum(-1)) - (shifted * here).sum(-1)) * there)

        return reading.summed(outputs, value)

    argument = embgrad.CrossEntropy(disguised(draw, labels), of, **options)
    return DrawnObjective(f"CrossEntropy({labels.tolist()}, {of!r}{said})", argument, formula)


def _linear(draw: Draw, kind: str, classes: int, examples: int, reading: Reading) -> DrawnObjective:
    """Return an objective that is linear in the rows' entries."""
    options, said = _options(reading)
    each = draw.chance(0.4)
    if kind == "Sum":
        vector, argument, text = np.ones(classes), embgrad.Sum(**options), "Sum("
    elif kind == "Projection":
        vector = draw.normal(examples, classes) if each else draw.normal(classes)
        argument, text = embgrad.Projection(disguised(draw, vector), **options), f"Projection({vector.tolist()}"
    elif kind == "Logit":
        index = draw.integers(0, classes - 1, examples if each else ())
        vector = np.eye(classes)[index]
        argument, text = embgrad.Logit(disguised(draw, index), **options), f"Logit({index.tolist()}"
    else:
        index = draw.integers(0, classes - 1, examples if each else ())
        against = (index + draw.integers(1, classes - 1, np.shape(index))) % classes
        vector = np.eye(classes)[index] - np.eye(classes)[against]
        argument = embgrad.Margin(disguised(draw, index), disguised(draw, against), **options)
        text = f"Margin({index.tolist()}, {against.tolist()}"
    slopes = vector[:, None] if vector.ndim == 2 else vector
    said = said if not text.endswith("(") else said.removeprefix(", ")
    return DrawnObjective(
        f"{text}{said})", argument, lambda outputs: reading.summed(outputs, lambda rows: (rows * slopes).sum(-1))
    )


def _native(draw: Draw, kind: str, classes: int, harness: Any) -> DrawnObjective:
    index = draw.integer(0, classes - 1)

    def formula(outputs: Outputs) -> np.ndarray:
        return outputs["logits"][..., index]

    if kind == "native":
        return DrawnObjective(f"harness.logit({index})", harness.logit(index), formula)
    return DrawnObjective(
        f"Scalar(harness.summed_logit({index}))", embgrad.Scalar(harness.summed_logit(index)), formula, True
    )


def broken_objective(draw: Draw, classes: int, examples: int) -> tuple[str, Callable[[], Any], tuple[type, ...]]:
    """Return the name of a kind of broken objective, the function that makes it, and the user's own errors."""
    refused: tuple[type, ...] = ()
    user_errors, raises = drawn_error(draw)
    kinds: dict[str, Callable[[], Any]] = {
        "label too large": lambda: embgrad.CrossEntropy(np.full(examples, classes + 1)),
        "huge label": lambda: embgrad.CrossEntropy(np.full(examples, 2**40)),
        "negative label": lambda: embgrad.CrossEntropy(np.full(examples, -1)),
        "ignored label": lambda: embgrad.CrossEntropy(np.full(examples, -100)),
        "labels too many": lambda: embgrad.CrossEntropy(np.zeros(examples + 1, int)),
        "no labels": lambda: embgrad.CrossEntropy([]),
        "labels that are fractions": lambda: embgrad.CrossEntropy(np.full(examples, 0.5)),
        "labels that are no numbers": lambda: embgrad.CrossEntropy(["a"] * examples),
        "labels of three axes": lambda: embgrad.CrossEntropy(np.zeros((examples, 1, 1), int)),
        "labels that are nonsense": lambda: embgrad.CrossEntropy(nonsense(draw)),
        "of something else": lambda: embgrad.CrossEntropy(
            np.zeros(examples, int), of=draw.choice(["logit", None, 3, []])
        ),
        "an index outside": lambda: embgrad.Logit(classes + draw.integer(0, 5)),
        "a negative index": lambda: embgrad.Logit(-1 - draw.integer(0, 5)),
        "an index that is nonsense": lambda: embgrad.Logit(nonsense(draw)),
        "indices too many": lambda: embgrad.Logit([0] * (examples + 1)),
        "the margin over itself": lambda: embgrad.Margin(0, 0),
        "a margin against outside": lambda: embgrad.Margin(0, classes + 2),
        "a vector too long": lambda: embgrad.Projection(np.ones(classes + 1)),
        "a vector that is not finite": lambda: embgrad.Projection(np.full(classes, draw.choice([np.nan, np.inf]))),
        "a vector of one number": lambda: embgrad.Projection(3.0),
        "a vector that is nonsense": lambda: embgrad.Projection(nonsense(draw)),
        "vectors too many": lambda: embgrad.Projection(np.ones((examples + 1, classes))),
        "an output of no name": lambda: embgrad.Sum(output=draw.choice(["logit", "", "hidden", "0"])),
        "an output that is no name": lambda: embgrad.Sum(output=draw.choice([3, b"logits", ["logits"]])),
        "a position where there is none": lambda: embgrad.Sum(position=draw.choice([0, -1, 99, [0] * examples])),
        "a position that is nonsense": lambda: embgrad.Sum(position=nonsense(draw)),
        "no objective": lambda: nonsense(draw),
        "a class": lambda: draw.choice([embgrad.Sum, embgrad.CrossEntropy, embgrad.Scalar, embgrad.Objective]),
        "Scalar of no function": lambda: embgrad.Scalar(nonsense(draw)),
        "a function that gives nonsense": lambda: lambda outputs: nonsense(draw),
        "Scalar of a function that gives nonsense": lambda: embgrad.Scalar(lambda outputs: nonsense(draw)),
        "a function that gives what the model gave": lambda: lambda outputs: (outputs, outputs),
        "a function that raises": lambda: raises,
        "Scalar of a function that raises": lambda: embgrad.Scalar(raises),
        "a function of no argument": lambda: lambda: 0,
    }
    kind = draw.choice(list(kinds))
    if "raises" in kind:
        refused = user_errors
    if kind == "a function of no argument":
        refused = (TypeError,)
    return kind, kinds[kind], refused
