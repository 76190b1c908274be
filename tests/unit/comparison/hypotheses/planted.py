"""Sites with values of a test's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from embgrad import TokenBatch
from embgrad.comparison.hypotheses.site import Before, Explanation, Site, arrived
from embgrad.comparison.recording import HeldWeight, Recording, Tensor
from embgrad.comparison.sites import Pair
from embgrad.comparison.weights import Matching


def site_of(
    a: np.ndarray,
    b: np.ndarray,
    before: Mapping[str, np.ndarray],
    *,
    real: np.ndarray | None = None,
    weights: Mapping[str, np.ndarray] | None = None,
    **further: Any,
) -> Site:
    """Return a site at the input of an output projection, after tensors by name, the nearest first.

    Weights belong to the site's layer, but those whose names begin with "outside.".
    """
    real = np.ones(a.shape[:2], bool) if real is None else real
    ids = np.ones(a.shape[:2], int)
    key = "layers.0.last:input#0"
    tensor = Tensor(key, "layers.0.last", "input", 0, (), 1.0, a)
    held = tuple(
        HeldWeight(name, name.rpartition(".")[0], values.shape, partial(np.asarray, values), layer=_layer(name))
        for name, values in (weights or {}).items()
    )
    recording = Recording("a model", {key: tensor}, held, TokenBatch(ids, real.astype(int)), "float64")
    other = replace(recording, tensors={key: replace(tensor, values=b)}, weights=())
    return Site(
        Pair("layers.0.last:input", key, key),
        0,
        np.asarray(a, np.float64),
        np.asarray(b, np.float64),
        real,
        ids,
        [Before(name, np.asarray(values, np.float64)) for name, values in before.items()],
        (recording, other),
        Matching((), {}, (), ()),
        **{"floor": 1e-9, **further},
    )


def _layer(name: str) -> int | None:
    return None if name.startswith("outside.") else 0


def expect_exact(site: Site, explanation: Explanation) -> None:
    """Check that an explanation predicts b's output, also as a function of the values at the points before."""
    at = {before.name: before.values for before in site.before}
    assert explanation.compute is not None
    assert set(explanation.inputs) <= set(at)
    assert site.off(explanation.predicted) < 1e-6
    values = {**at, **{arrived(name): array for name, array in at.items()}}
    np.testing.assert_allclose(explanation.compute(values.__getitem__), explanation.predicted, rtol=1e-12, atol=1e-12)
