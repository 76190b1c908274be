"""Bisection of two models: the point at which they diverge, the direction, and the weights that belong there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from embgrad.backend.protocol import Call
from embgrad.common.keywords import explain_arguments
from embgrad.common.progress import reporter
from embgrad.common.tolerance import check_tolerance
from embgrad.comparison.bisection.records import Step, Suspect
from embgrad.errors import ObjectiveError
from embgrad.inputs.conventions import batch_of
from embgrad.toolkit.signature import as_parts, expect_callable

__all__ = ["Bisection", "bisect"]


@dataclass(frozen=True)
class Bisection:
    """The point at which two models diverge.

    Attributes:
        first: the first point at which they diverge: a role, the path of a module's input or output, or "objective". None if they
            agree at all points.
        direction: "forward" if a value differs there; "backward" if all values agree, and this gradient is the first to differ in
            the backward pass from the objective; None if they agree.
        after: the last point before `first`, in that direction, at which they agree; None if there is none.
        module: the smallest module that contains the difference, by its name in a BERT checkpoint or by its path in a; None if
            they agree, or if no module contains it.
        piece: a readable name of that module, such as "query" or "the attention itself"; None if there is no such name.
        parameters: the weights that belong there; those that differ come first.
        steps: every point that was compared, in the order of the forward pass, followed by the points inside the stretch in which
            the models diverge.
        tolerance: the relative L2 up to which two values, or gradients, agree.
        random: for each of "a" and "b" whose runs differ from one another, the first role at which they do.
        labels: descriptions of a and b.
        text: the result in sentences.
    """

    first: str | None
    direction: str | None
    after: str | None
    module: str | None
    piece: str | None
    parameters: tuple[Suspect, ...]
    steps: tuple[Step, ...]
    tolerance: float
    random: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[str, str] = ("a", "b")
    text: str = ""

    @property
    def agrees(self) -> bool:
        """True if the models agree at all points, and each model agrees with itself when it is run again."""
        return self.first is None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields in a form that JSON can hold."""
        return {
            "agrees": self.agrees,
            "first": self.first,
            "direction": self.direction,
            "after": self.after,
            "module": self.module,
            "piece": self.piece,
            "parameters": [weight.to_dict() for weight in self.parameters],
            "steps": [step.to_dict() for step in self.steps],
            "tolerance": self.tolerance,
            "random": dict(self.random),
            "labels": list(self.labels),
            "text": self.text,
        }

    def __repr__(self) -> str:
        width = max([len("point"), *(len(step.name) for step in self.steps)])
        lines = [f"b = {self.labels[1]} against a = {self.labels[0]}", f"{'point':>{width}}   forward  backward"]
        for step in self.steps:
            figures = "".join(
                f"{'-' if figure is None else f'{figure.relative_l2:.1e}':>10}"
                for figure in (step.forward, step.backward)
            )
            lines.append(
                f"{step.name:>{width}}{figures}{'' if step.agrees else '  diverges'}{step.note and f'  {step.note}'}"
            )
        return "\n".join([*lines, self.text])


@explain_arguments
def bisect(
    model_a: Any,
    model_b: Any,
    batch: Any,
    objective: Any,
    *,
    tokenizer: Any = None,
    max_length: int | None = None,
    call_a: Call | None = None,
    call_b: Call | None = None,
    tolerance: float | None = None,
    progress: Any = None,
) -> Bisection:
    """Find where two models diverge, of one framework or of two: values forward, then gradients backward, point by point.

    The points are those with roles that both models have, then the objective's values. Inside the stretch in which the models
    diverge, they are the inputs and outputs of modules that both have, matched by the checkpoint's names in a BERT, otherwise by
    their paths or their order. Both models run in evaluation mode, and several times, to see whether each agrees with itself.
    The models are restored afterwards.

    Args:
        model_a: the model to measure against, as in `gradients`.
        model_b: the model that is measured.
        batch: as in `gradients`; so are `tokenizer` and `max_length`.
        objective: as in `gradients`; a pair of functions if functions of native outputs differ between the frameworks.
        call_a: a function that calls `model_a`, as `call` in `gradients`.
        call_b: a function that calls `model_b`, as `call` in `gradients`.
        tolerance: the relative L2 up to which values, and gradients, agree; None for the rounding error to expect from the
            models' dtype and depth.
        progress: True for a bar on the terminal, or a function that takes the number of passes done and the number of all passes.

    Returns:
        A Bisection. Its `agrees` is True if no point differs.

    Raises:
        BackendError: no backend takes a model.
        BatchError: the batch is malformed, or an id lies outside a table.
        PointError: the models have no point in common.
        OutputError: the objective names an output that a model does not have.
        ObjectiveError: the objective fits neither model.
        UnsupportedError: a backend does not support this for its model.
    """
    from embgrad.comparison.bisection.messages import describe
    from embgrad.comparison.bisection.readings import Reader, Side
    from embgrad.comparison.bisection.search import Search

    tolerance = check_tolerance(tolerance)
    expect_callable(call_a, "call_a")
    expect_callable(call_b, "call_b")
    tokens = batch_of(batch, tokenizer, max_length, model_a)
    first, second = _pair(objective)
    with reporter(progress) as report:
        a, b = (
            Side(Reader(model, tokens, own_objective, call))
            for model, own_objective, call in ((model_a, first, call_a), (model_b, second, call_b))
        )
        result = Search(a, b, tokens, tolerance, report).run()
    labels = (f"{side.reader.backend.name} {described(side.reader.model)}" for side in (a, b))
    region = result.region
    return Bisection(
        first=result.first,
        direction=result.direction,
        after=result.after,
        module=None if region is None else region.module,
        piece=None if region is None else region.piece,
        parameters=result.parameters,
        steps=result.steps,
        tolerance=result.tolerance,
        random=result.random,
        labels=(next(labels), next(labels)),
        text=describe(result),
    )


def _pair(objective: Any) -> tuple[Any, Any]:
    """Return the objective of a, and that of b."""
    if not isinstance(objective, (tuple, list)):
        return objective, objective
    if len(objective) != 2:
        raise ObjectiveError(
            f"objective is a {type(objective).__name__} of {len(objective)}: expected one objective, or a pair of them, for a "
            "and for b"
        )
    return objective[0], objective[1]


def described(model: Any) -> str:
    """Return the name of a model's class, or the names of the classes of its modules."""
    return " + ".join(type(part).__qualname__ for part in as_parts(model))
