"""The error of a right result that rounding explains.

The closed form is evaluated again with each intermediate result off by a random share of up to STEP. To first order the result
moves in proportion, which shows how strongly this model, with these weights and inputs, amplifies rounding errors. Therefore a
layer norm of nearly equal numbers is allowed more than a mean, and nothing is tuned to a case.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from tests.contract.properties.closed_form import Kept
from tests.contract.properties.specs import Spec

#: The largest share by which an intermediate result is moved.
STEP: Final = 1e-7

#: The number of evaluations; the largest difference counts.
TIMES: Final = 3

#: For the order and the number of operations, which are not the closed form's: frameworks go backward, where larger numbers may
#: cancel, and the closed form forward.
MARGIN: Final = 64.0


def unit_roundoff(dtype: str) -> float:
    return float(np.finfo(dtype).eps) / 2


def allowed(spec: Spec, positions: int, exact: np.ndarray, evaluate: Callable[[Kept], np.ndarray]) -> float:
    """Return the largest error that is allowed.

    Args:
        positions: the number of positions of the batch; no sum is longer than this, the width or the vocabulary.
        evaluate: computes the array, with a function that is applied to every intermediate result.
    """
    random = np.random.default_rng(0)

    def disturbed(value: np.ndarray) -> np.ndarray:
        return np.asarray(value * (1 + STEP * random.uniform(-1, 1, np.shape(value))))

    moved = max(float(np.abs(evaluate(disturbed) - exact).max(initial=0.0)) for _ in range(TIMES)) / STEP
    terms = max(spec.width, spec.vocab if spec.head == "tied" else 0, positions)
    # The result itself is rounded too.
    return unit_roundoff(spec.dtype) * (MARGIN + terms) * (moved + float(np.abs(exact).max(initial=0.0)))
