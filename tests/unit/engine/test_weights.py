"""Other values in the places of weights, on the reference: put, taken back bit for bit, and what cannot be put."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.engine.weights import substituted
from embgrad.testing.reference import ReferenceModel, lookup

WEIGHTS = {"E": np.random.default_rng(0).normal(size=(12, 4)), "W": np.random.default_rng(1).normal(size=(4, 3))}


def model() -> ReferenceModel:
    def forward(model: Any, input_ids: np.ndarray) -> Any:
        return lookup(model["E"], input_ids).mean(1) @ model["W"]

    return ReferenceModel(forward, {name: value.copy() for name, value in WEIGHTS.items()})


def test_substituted_values_are_restored() -> None:
    built, ids = model(), [[3, 5], [2, 9]]
    with substituted(built, {"W": WEIGHTS["W"] * 2}):
        doubled = embgrad.gradients(built, ids, embgrad.Logit(1))
    # Of a mean and a linear map: the map's column over the number of positions.
    np.testing.assert_allclose(doubled.values, np.broadcast_to(WEIGHTS["W"][:, 1], (2, 2, 4)), rtol=1e-12)
    for name, value in WEIGHTS.items():
        assert built[name].value.tobytes() == value.tobytes()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"V": np.zeros((4, 3))}, r"the model has no weight 'V': expected one of 'E', 'W'"),
        (
            {"W": [[1, 2], [3]]},
            r"the value for the weight 'W' is \[\[1, 2\], \[3\]\], which is no array \(.*\): expected real numbers of the shape "
            r"\(4, 3\)",
        ),
        ({"W": "text"}, r"the value for the weight 'W' is of dtype <U4: expected real numbers"),
        (
            {"W": np.zeros((3, 4))},
            r"the value for the weight 'W' has the shape \(3, 4\): expected \(4, 3\); transpose it",
        ),
    ],
)
def test_unfit_values_are_refused(values: Any, message: str) -> None:
    built = model()
    with pytest.raises(embgrad.EmbgradError, match=message), substituted(built, {"E": WEIGHTS["E"] + 1} | values):
        raise AssertionError("nothing is put, and nothing run")
    assert built["E"].value.tobytes() == WEIGHTS["E"].tobytes()
