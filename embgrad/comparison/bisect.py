"""Where two models part: at which point, in which direction, and which weights belong there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from embgrad.backend.protocol import Call
from embgrad.backend.signature import as_parts, expect_callable
from embgrad.common.keywords import explained
from embgrad.common.progress import reporter
from embgrad.common.tolerance import checked_tolerance
from embgrad.errors import ObjectiveError
from embgrad.inputs.conventions import batch_of

if TYPE_CHECKING:
    from embgrad.comparison.bisection.narrow import Step
    from embgrad.comparison.bisection.suspects import Suspect

__all__ = ["Bisection", "bisect"]


@dataclass(frozen=True)
class Bisection:
    """Where two models part.

    Attributes:
        first: the first point at which they do, a role or the path of a module's input or output, or "objective"; None where
            they agree at all points.
        direction: "forward" where a value parts there; "backward" where all values agree, and there, coming down from the
            objective, a gradient is the first to part; None where they agree.
        after: the last point before it, in that direction, at which they agree; None where there is none.
        module: the smallest module that holds the difference, in the names of a BERT's checkpoint or by a's own path; None
            where they agree, or no module does.
        piece: what it is to people, such as "query" or "the attention itself"; None where nothing is known of it.
        parameters: the weights that belong there, those that differ first.
        steps: every point that was compared, in the order of the forward pass, those inside the parted stretch behind.
        tolerance: the relative L2 up to which two values, or gradients, agree.
        random: by "a" and "b", for a model that differs from itself, the first role at which it does.
        labels: what a and b are.
        text: what was found, for people.
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
        """Whether they agree at all points, and each of them with itself."""
        return self.first is None

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "agrees": self.agrees,
            "first": self.first,
            "direction": self.direction,
            "after": self.after,
            "module": self.module,
            "piece": self.piece,
            "parameters": [one.to_dict() for one in self.parameters],
            "steps": [one.to_dict() for one in self.steps],
            "tolerance": self.tolerance,
            "random": dict(self.random),
            "labels": list(self.labels),
            "text": self.text,
        }

    def __repr__(self) -> str:
        width = max([len("point"), *(len(one.name) for one in self.steps)])
        lines = [f"b = {self.labels[1]} against a = {self.labels[0]}", f"{'point':>{width}}   forward  backward"]
        for one in self.steps:
            figures = "".join(
                f"{'-' if figure is None else f'{figure.relative_l2:.1e}':>10}"
                for figure in (one.forward, one.backward)
            )
            lines.append(f"{one.name:>{width}}{figures}{'' if one.agrees else '  parts'}{one.note and f'  {one.note}'}")
        return "\n".join([*lines, self.text])


@explained
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
    """Where two models part, of one framework or of two: values forward, then gradients backward, point by point.

    The points are those with roles that both have, then the objective's values; inside the stretch in which they part, the
    inputs and outputs of modules that both have: by the checkpoint's names in a BERT, else by their paths or their order. Both
    run in evaluation mode, and several times, to see whether each agrees with itself. The models stay as they were.

    Args:
        model_a: a model as in `gradients`, what the other is measured against.
        model_b: the other.
        batch: as in `gradients`; so are `tokenizer` and `max_length`.
        objective: as in `gradients`; a pair of functions where those on native outputs differ from framework to framework.
        call_a: calls the one model in another way, as `call` in `gradients`.
        call_b: likewise the other.
        tolerance: the relative L2 up to which values, and gradients, agree; None for what rounding makes of the models' dtype
            and depth.
        progress: True for a bar on the terminal, or a function that takes the passes done and their number.

    Raises:
        BackendError: no backend takes a model.
        BatchError: the batch is malformed, or an id lies outside a table.
        PointError: the models have no point in common.
        OutputError: the objective names an output that a model does not have.
        ObjectiveError: the objective goes with neither model.
        UnsupportedError: a backend cannot do this for its model.
    """
    from embgrad.comparison.bisection.pair import Side
    from embgrad.comparison.bisection.readings import Reader
    from embgrad.comparison.bisection.search import Search, told

    tolerance = checked_tolerance(tolerance)
    expect_callable(call_a, "call_a")
    expect_callable(call_b, "call_b")
    tokens = batch_of(batch, tokenizer, max_length, model_a)
    first, second = _pair(objective)
    with reporter(progress) as report:
        a, b = (
            Side(Reader(model, tokens, one, call))
            for model, one, call in ((model_a, first, call_a), (model_b, second, call_b))
        )
        found = Search(a, b, tokens, tolerance, report).run()
    labels = (f"{side.reader.backend.name} {described(side.reader.model)}" for side in (a, b))
    part = found.part
    return Bisection(
        first=found.first,
        direction=found.direction,
        after=found.after,
        module=None if part is None else part.module,
        piece=None if part is None else part.piece,
        parameters=found.parameters,
        steps=found.steps,
        tolerance=found.tolerance,
        random=found.random,
        labels=(next(labels), next(labels)),
        text=told(found),
    )


def _pair(objective: Any) -> tuple[Any, Any]:
    """The objective of a, and that of b."""
    if not isinstance(objective, (tuple, list)):
        return objective, objective
    if len(objective) != 2:
        raise ObjectiveError(
            f"objective is a {type(objective).__name__} of {len(objective)}: expected one objective, or a pair of them, for a "
            "and for b"
        )
    return objective[0], objective[1]


def described(model: Any) -> str:
    """A model's class, or its parts' classes."""
    return " + ".join(type(part).__qualname__ for part in as_parts(model))
