"""The result of a bisection: the point at which two models diverge, its weights, and the figures of all points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

__all__ = ["Bisection", "Step", "Suspect"]


@dataclass(frozen=True)
class Step:
    """One point of both models, each of which runs by itself.

    Attributes:
        name: a role, the name of a point of a, "output" for the models' output, or "objective".
        forward: the relative L2 of b's value against a's.
        backward: the relative L2 of the gradients; None if either model has none there.
        agrees: whether the models agree at this point.
    """

    name: str
    forward: float
    backward: float | None
    agrees: bool


@dataclass(frozen=True)
class Suspect:
    """A weight of the stretch in which two models diverge.

    Attributes:
        a: its name in a; None if a has no weight with its values.
        b: the name of the weight of b that belongs to it, by its values; None if there is none.
        relation: how b's values relate to a's, such as "equal", "different", "times 2", "transposed", "only in a".
        relative_l2: the relative L2 of b's values against a's; infinite if they cannot be compared.
    """

    a: str | None
    b: str | None
    relation: str
    relative_l2: float

    @property
    def differs(self) -> bool:
        """True if the two models differ in this weight."""
        return self.relation != "equal"


@dataclass(frozen=True)
class Bisection:
    """The point at which two models diverge.

    Attributes:
        first: the first point at which they diverge: the role at the end of the stretch that differs, such as "layer.2"; behind
            the last role the name of a point of a; "output" or "objective". None if they agree at all points.
        direction: "forward" if a value differs there; "backward" if all values agree, and this gradient is the first to differ in
            the backward pass from the objective; None if they agree.
        after: the last point before `first`, in that direction, at which they agree; None if there is none.
        module: the path in a of the smallest module that is known to contain the difference; None if they agree, or if no module
            contains it.
        parameters: the weights that belong there; those that differ come first.
        steps: every point that was compared, in the order of the forward pass.
        tolerance: the relative L2 up to which two values, or gradients, agree; None for the rounding errors at each point.
        random: for each of "a" and "b" whose runs differ from one another, the first point at which they do.
        labels: descriptions of a and b.
        text: the result in sentences, with the causes where they are known.
    """

    first: str | None
    direction: str | None
    after: str | None
    module: str | None
    parameters: tuple[Suspect, ...]
    steps: tuple[Step, ...]
    tolerance: float | None
    random: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[str, str] = ("a", "b")
    text: str = ""

    @property
    def agrees(self) -> bool:
        """True if the models agree at all points, and each model agrees with itself when it is run again."""
        return self.first is None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields in a form that JSON can hold; numbers that are not finite are None."""
        return {"agrees": self.agrees, **{entry.name: _plain(getattr(self, entry.name)) for entry in fields(self)}}

    def __repr__(self) -> str:
        width = max([len("point"), *(len(step.name) for step in self.steps)])
        lines = [f"b = {self.labels[1]} against a = {self.labels[0]}", f"{'point':>{width}}   forward  backward"]
        for step in self.steps:
            figures = "".join(
                f"{'-' if figure is None else f'{figure:.1e}':>10}" for figure in (step.forward, step.backward)
            )
            lines.append(f"{step.name:>{width}}{figures}{'' if step.agrees else '  diverges'}")
        return "\n".join([*lines, self.text])


def _plain(value: Any) -> Any:
    """Return a field in a form that JSON can hold."""
    if isinstance(value, (Step, Suspect)):
        return {entry.name: _plain(getattr(value, entry.name)) for entry in fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return dict(value)
    return None if isinstance(value, float) and not np.isfinite(value) else value
