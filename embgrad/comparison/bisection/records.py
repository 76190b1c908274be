"""The records of a bisection: pairs of points, readings, steps, the region of the difference, its weights, and the result."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from embgrad.backend.protocol import Weight
from embgrad.common.metrics import Figures

__all__ = ["LAYER", "PIECES", "Pair", "Reading", "Region", "SearchResult", "Step", "Suspect"]

#: The name of a module in a BERT's layer, in Hugging Face's spelling.
LAYER: Final = re.compile(r"encoder\.layer\.\d+\.(.+)")

#: Readable names of the modules of a BERT; those in a layer by their path inside the layer.
PIECES: Final = {
    "attention.self.query": "query",
    "attention.self.key": "key",
    "attention.self.value": "value",
    "attention.self": "the attention itself",
    "attention.output.dense": "attention output",
    "attention.output.LayerNorm": "attention norm",
    "intermediate.dense": "feed-forward in",
    "output.dense": "feed-forward out",
    "output.LayerNorm": "output norm",
    "embeddings.LayerNorm": "embeddings norm",
    "pooler.dense": "pooler",
}


@dataclass(frozen=True)
class Pair:
    """The keys of a point of one model and of the matching point of the other."""

    name: str
    a: str
    b: str


@dataclass(frozen=True)
class Reading:
    """The value and the gradient at a point.

    Attributes:
        value: the value, (example, position, dim) at a role, otherwise in the tensor's own axes, with examples first if these
            can be determined.
        gradient: the gradient, in the same axes; None if the objective does not depend on the point, or if it was not requested.
        is_batch: whether the first two axes are the batch's examples and positions.
        shared: whether all examples share one tensor, whose gradient is then the sum over all of them: (1, position, dim).
    """

    value: np.ndarray
    gradient: np.ndarray | None
    is_batch: bool
    shared: bool = False

    @property
    def largest(self) -> float | None:
        """The largest absolute entry of the gradient; None if there is no gradient."""
        return None if self.gradient is None else float(np.abs(self.gradient).max(initial=0.0))


@dataclass(frozen=True)
class Step:
    """One point of both models.

    Attributes:
        name: a role, the name of a module's input or output, or "objective".
        forward: how much b's value differs from a's; None if they cannot be compared.
        backward: how much b's gradient differs from a's; None if it was not read, or if either model has none there.
        agrees: whether the models agree at this point.
        note: a remark about this point.
    """

    name: str
    forward: Figures | None
    backward: Figures | None
    agrees: bool
    note: str = ""

    def to_dict(self) -> dict[str, object]:
        """Return the fields in a form that JSON can hold."""
        figures = {"forward": self.forward, "backward": self.backward}
        return {
            "name": self.name,
            **{name: None if figure is None else figure.to_dict() for name, figure in figures.items()},
            "agrees": self.agrees,
            "note": self.note,
        }


@dataclass(frozen=True)
class Region:
    """The smallest region of both models that is known to contain the difference.

    Attributes:
        module: the module that contains it, by checkpoint name or by its path in a; None if no module does.
        piece: a readable name of it, such as "query"; None if there is none.
        after: the last point, in the direction of the search, at which both agree; None if there is none.
        at: the first point at which they differ; None if that is the end of the stretch itself.
        weights: the weights that belong to the region in a, and in b.
        steps: all points in the stretch, in order.
    """

    module: str | None
    piece: str | None
    after: str | None
    at: str | None
    weights: tuple[list[Weight], list[Weight]]
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Suspect:
    """A weight in the region in which two models diverge.

    Attributes:
        a: its name in the first model; None if that has no counterpart.
        b: its name in the second model; None if that has no counterpart.
        relative_l2: how much b's values differ from a's, arranged as a's; infinite if they cannot be compared.
        relation: "equal", "differs", "transposed", "swapped with …", "holds a's …", "of shape …", "only in a" or "only in b".
        canonical: its name in a BERT checkpoint; None for others.
        module: the path of the module in a that owns it, or in b if a has none.
    """

    a: str | None
    b: str | None
    relative_l2: float
    relation: str
    canonical: str | None = None
    module: str = ""

    @property
    def name(self) -> str:
        """A readable name."""
        return self.canonical or self.a or self.b or ""

    @property
    def differs(self) -> bool:
        """True if the two models differ in this weight."""
        return self.relation != "equal"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields in a form that JSON can hold."""
        relative = self.relative_l2 if np.isfinite(self.relative_l2) else None
        return {
            "a": self.a,
            "b": self.b,
            "relative_l2": relative,
            "relation": self.relation,
            "canonical": self.canonical,
        }


@dataclass(frozen=True)
class SearchResult:
    """The result of a search; the fields are described in `Bisection`.

    Attributes:
        region: the smallest region that contains the difference; None if the search did not narrow it down.
        figures: the figures of the first point that differs; None if there are none.
        notes: further remarks for the text.
    """

    tolerance: float
    steps: tuple[Step, ...] = ()
    first: str | None = None
    direction: str | None = None
    after: str | None = None
    region: Region | None = None
    parameters: tuple[Suspect, ...] = ()
    random: Mapping[str, str] = field(default_factory=dict)
    figures: Figures | None = None
    notes: tuple[str, ...] = ()
