"""The tensors of a site's layer are those that its weights' modules read and return, and halves of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from embgrad.comparison.hypotheses.layer_sources import branches, within
from embgrad.comparison.hypotheses.site import Before
from embgrad.comparison.recording import Tensor
from tests.unit.comparison.hypotheses.planted import site_of

X, OTHER = np.random.default_rng(0).normal(size=(2, 2, 5, 12))


def test_tensors_of_earlier_layers_are_left_out() -> None:
    at = site_of(X, 2 * X, {"layers.1.in": X, "layers.0.in": OTHER}, weights={"layers.1.conv.weight": X[0]})
    times = {"layers.0.in": 1.0, "layers.1.conv": 2.0, "layers.1.in": 3.0}
    tensors = {path: Tensor(path, path, "output", 0, (), time, X) for path, time in times.items()}
    recording = replace(at.recordings[0], tensors={**at.recordings[0].tensors, **tensors})
    assert [source.name for source in within(at)] == ["layers.1.in", "layers.0.in"]
    assert [source.name for source in within(replace(at, recordings=(recording, recording)))] == ["layers.1.in"]


def test_shared_tensors_and_their_halves_come_first() -> None:
    both = np.concatenate([X, OTHER], -1)
    at = site_of(X + 1, X, {"narrow": X[..., :3]})
    at = replace(at, before=[Before("own", X - 1, False), *at.before, Before("in", both)])
    found = branches(at)
    assert [source.text for source in found] == ["the first half of in", "the second half of in", "own"]
    for source, values in zip(found, (X, OTHER, X - 1), strict=True):
        np.testing.assert_array_equal(source.values, values)
