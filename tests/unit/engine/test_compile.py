"""What a call says that asks for a compiled trace where there is none."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.backend.registry import backend_named
from embgrad.testing import reference
from embgrad.testing.conformance import example_batch, example_weights
from tests.contract.conformance.harness_reference import Harness


class Falling(reference.ReferenceBackend):
    supports = frozenset({*reference.ReferenceBackend.supports, "compile"})

    def run(self, model: Any, batch: Any, request: Any) -> Any:
        run = super().run(model, batch, request)
        return replace(run, uncompiled="the moon is full") if request.compiled else run


def test_one_warning_says_why_there_is_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = Harness().build("mean", example_weights()), example_batch()
    monkeypatch.setattr("embgrad.backend.registry.backend_for", lambda model: Falling())
    assert backend_named("reference").supports < Falling.supports
    plain = embgrad.gradients(model, batch, embgrad.Logit(0))
    assert "compiled" not in plain.provenance
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        actual = embgrad.gradients(model, batch, embgrad.Logit(0), compile=True, batch_size=1, check=True)
    said = [item for item in caught if issubclass(item.category, embgrad.EmbgradWarning)]
    assert [str(item.message) for item in said] == ["compile=True: the moon is full; the model ran without a trace"]
    assert said[0].filename == __file__
    assert actual.provenance["compiled"] is False
    np.testing.assert_array_equal(actual.values, plain.values)
