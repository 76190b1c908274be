"""How far a right result may lie from the closed form: what rounding every intermediate result to the dtype does to it.

The closed form is evaluated once more with each intermediate result off by a random share of up to STEP. To first order the
result moves in proportion: by how much, over STEP, is how strongly this model, at these weights and inputs, multiplies errors
of its arithmetic. What a dtype's unit roundoff makes of that is what is allowed, so that a layer norm of nearly equal numbers
is allowed more than a mean, and nothing is tuned to a case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from tests.contract.properties.specs import Spec

#: The largest share by which an intermediate result is moved: small beside 1, large beside float64's rounding.
STEP: Final = 1e-7

#: How often it is done; the largest of the differences counts.
TIMES: Final = 3

#: For the order and the number of the operations, which is not the closed form's, and for the random draws that miss the worst.
MARGIN: Final = 16.0

Evaluated = Mapping[str, np.ndarray]


def unit_roundoff(dtype: str) -> float:
    """Half the gap between 1 and the next number."""
    return float(np.finfo(dtype).eps) / 2


def allowed(
    spec: Spec, positions: int, evaluate: Callable[[Callable[[np.ndarray], np.ndarray]], Evaluated]
) -> dict[str, float]:
    """By the name of each array that is evaluated, how far an entry may be off.

    Args:
        positions: of the batch: a sum over them, the width or the vocabulary is the longest there is.
        evaluate: the arrays, with what is to be done to every intermediate result.
    """
    random = np.random.default_rng(0)

    def disturbed(value: np.ndarray) -> np.ndarray:
        return np.asarray(value * (1 + STEP * random.uniform(-1, 1, np.shape(value))))

    exact = evaluate(np.asarray)
    moved = dict.fromkeys(exact, 0.0)
    for _ in range(TIMES):
        for name, value in evaluate(disturbed).items():
            moved[name] = max(moved[name], float(np.abs(value - exact[name]).max(initial=0.0)) / STEP)
    terms = max(spec.width, spec.vocab if spec.head == "tied" else 0, positions)
    unit = unit_roundoff(spec.dtype) * (MARGIN + terms)
    # Beside the arithmetic, the result itself is rounded.
    return {name: unit * (moved[name] + float(np.abs(exact[name]).max(initial=0.0))) for name in exact}
