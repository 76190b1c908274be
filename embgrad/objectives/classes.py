"""The classes of objectives by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from embgrad.errors import ObjectiveError
from embgrad.objectives.distances import BinaryCrossEntropy, CosineSimilarity, SquaredError
from embgrad.objectives.log_probability import LogProbability
from embgrad.objectives.objective import Objective
from embgrad.objectives.objectives import CrossEntropy, Logit, Margin, Probability, Projection, Sum

__all__ = ["CLASSES", "rebuilt"]

#: The objectives that a result's provenance and the command line can name.
CLASSES: Final[Mapping[str, type[Objective]]] = {
    cls.__name__: cls
    for cls in (
        *(CrossEntropy, LogProbability, Logit, Margin, Probability, Projection, Sum),
        *(BinaryCrossEntropy, CosineSimilarity, SquaredError),
    )
}


def rebuilt(description: Mapping[str, Any]) -> Objective | None:
    """Return the objective that a provenance describes; None for a function, or a class that embgrad does not know."""
    arguments = {name: value for name, value in description.items() if name != "class"}
    cls = CLASSES.get(str(description.get("class")))
    if cls is None:
        return None
    try:
        return cls(**arguments)
    except (TypeError, ObjectiveError):  # a file whose description was not written by embgrad
        return None
