"""The conformance checks of parameter gradients and table gradients."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

import embgrad
from embgrad.testing.examples import (
    CLASSES,
    close,
    example_batch,
    example_weights,
    expect_same,
    logits_of_mean,
    needs,
    softmax,
    tied_by_hand,
)
from embgrad.testing.harness import Harness

__all__ = ["TableChecks"]

LABELS: Final = np.array([2, 0, 1])


@needs("parameters", "tables")
class TableChecks:
    """The checks that a backend with the abilities "parameters" and "tables" must pass."""

    def test_the_gradient_of_every_parameter(self, harness: Harness, model: Any) -> None:
        weights, batch, built = example_weights(), example_batch(), model("mean")
        gradients = embgrad.tables.parameter_gradients(built, batch, embgrad.CrossEntropy(LABELS))
        logits = logits_of_mean(weights, batch.ids)
        cotangent = softmax(logits) - np.eye(CLASSES)[LABELS]
        means = weights["E"][batch.ids].mean(1)
        table = np.zeros_like(weights["E"])
        np.add.at(table, batch.ids, np.repeat((cotangent @ weights["W"].T / 4)[:, None], 4, 1))
        for weight, expected in {"W": means.T @ cotangent, "b": cotangent.sum(0), "E": table}.items():
            name, transposed = harness.parameter(built, weight)
            close(gradients[name].T if transposed else gradients[name], expected, 1e-12)
            assert name not in gradients.unreached
        close(gradients.objective, -np.log(softmax(logits))[np.arange(3), LABELS], 1e-12)

    def test_parameters_that_nothing_reaches_are_zeros_and_named(self, harness: Harness, model: Any) -> None:
        built = model("detached")
        gradients = embgrad.tables.parameter_gradients(built, example_batch(), embgrad.Sum())
        name, _ = harness.parameter(built, "E")
        assert name in gradients.unreached
        assert not gradients[name].any()
        assert gradients[harness.parameter(built, "W")[0]].any()
        with pytest.raises(KeyError, match="Did you mean"):
            gradients[f"{name}s"]

    def test_state_after_parameter_gradients(self, harness: Harness, model: Any) -> None:
        for architecture in ("hidden", "tied", "layers"):
            built = model(architecture)
            harness.disturb(built)
            before = harness.state(built)
            embgrad.tables.parameter_gradients(built, example_batch(), embgrad.Sum())
            embgrad.tables.table_gradients(built, example_batch(), embgrad.Sum())
            expect_same(harness.state(built), before)
            with pytest.raises(embgrad.errors.OutputError):
                embgrad.tables.parameter_gradients(built, example_batch(), embgrad.Sum(output="nothing"))
            expect_same(harness.state(built), before)

    @pytest.mark.parametrize("frozen", [False, True])
    def test_the_ledger_of_a_tied_table(self, model: Any, frozen: bool) -> None:
        weights, batch = example_weights(), example_batch()
        objective = embgrad.CrossEntropy(np.tile([3, -100, 17, 39], (3, 1)))
        gradients = embgrad.tables.table_gradients(model("tied", frozen=frozen), batch, objective)
        lookup, head = tied_by_hand(weights, batch, objective)
        close(gradients.lookup, lookup, 1e-12)
        close(gradients.head, head, 1e-12)
        close(gradients.total, lookup + head, 1e-12)
        if gradients.own is not None:  # the framework computes a table gradient only if the table is trainable
            close(gradients.own, lookup + head, 1e-12)
            assert gradients.apart is not None
            assert gradients.apart < 1e-12
        word = embgrad.gradients(model("tied", frozen=frozen), batch, objective)
        close(word.table().to_dense(), lookup, 1e-12)

    def test_the_ledger_of_a_table_that_nothing_shares(self, model: Any) -> None:
        batch = example_batch()
        gradients = embgrad.tables.table_gradients(model("hidden"), batch, embgrad.Sum())
        assert not gradients.head.any()
        assert not gradients.tied
        close(gradients.lookup, embgrad.gradients(model("hidden"), batch, embgrad.Sum()).table().to_dense(), 1e-12)

    def test_the_ledger_counts_every_lookup_in_the_table(self, model: Any) -> None:
        batch = example_batch()
        gradients = embgrad.tables.table_gradients(model("twice"), batch, embgrad.Sum())
        both = embgrad.gradients(model("twice"), batch, embgrad.Sum(), at=["word#0", "word#1"])
        assert gradients.lookups == 2
        close(gradients.lookup, sum(result.table().to_dense() for result in both.values()), 1e-12)  # type: ignore[arg-type]
        close(gradients.total, gradients.own, 1e-12)  # type: ignore[arg-type]
