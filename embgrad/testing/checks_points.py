"""The conformance checks of points: roles, paths and occurrences, at lookups and modules."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

import embgrad
from embgrad.testing.examples import close, example_batch, example_weights, layers_by_hand, needs
from embgrad.testing.harness import Harness

__all__ = ["PointChecks"]

ROLES: Final = ("word", "embeddings", "layer.0", "layer.1", "layer.-1")
OBJECTIVE: Final = embgrad.Projection([1.0, -2.0, 0.5])


@needs("modules")
class PointChecks:
    """The checks that a backend with the ability "modules" must pass."""

    def test_the_roles_of_a_stack_of_layers(self, model: Any) -> None:
        for architecture in ("layers", "repeated"):
            seen = embgrad.points(model(architecture), example_batch())
            roles = {role for point in seen for role in point.roles}
            assert roles == {"word", "position", "embeddings", "layer.0", "layer.1", "layer.2", "layer.-1"}
            (last,) = (point for point in seen if "layer.-1" in point.roles)
            assert last.roles == ("layer.2", "layer.-1")
            assert last.shape == (3, 4, 5)

    @pytest.mark.parametrize("architecture", ["layers", "repeated"])
    def test_closed_form_at_each_role(self, model: Any, architecture: str) -> None:
        batch = example_batch()
        results = embgrad.gradients(model(architecture), batch, OBJECTIVE, at=ROLES)
        assert list(results) == list(ROLES)
        for role, (value, gradient) in layers_by_hand(example_weights(), batch.ids, OBJECTIVE).items():
            if role in results:
                close(results[role].activations, value, 1e-12)
                close(results[role].values, gradient, 1e-12)
                assert results[role].values.flags.c_contiguous
                assert results[role].values.flags.owndata
                close(embgrad.gradients(model(architecture), batch, OBJECTIVE, at=role).values, gradient, 1e-12)

    def test_layers_take_one_forward_pass(self, model: Any) -> None:
        built, batch = model("layers"), example_batch()
        made: list[int] = []

        def call(model: Any, inputs: Any) -> Any:
            made.append(len(made))
            return model(inputs["input_ids"])

        at = ["layer.0", "layer.-1"]
        results = embgrad.gradients(built, {"input_ids": batch.ids}, OBJECTIVE, at=at, call=call)
        assert len(made) == 1, f"{len(made)} forward passes, of which one records all points and reads these"
        by_hand = layers_by_hand(example_weights(), batch.ids, OBJECTIVE)
        close(results["layer.0"].values, by_hand["layer.0"][1], 1e-12)
        close(results["layer.-1"].values, by_hand["layer.2"][1], 1e-12)

    def test_the_lookup_by_position_has_a_gradient_for_each_example(self, model: Any) -> None:
        weights, batch = example_weights(), example_batch()
        result = embgrad.gradients(model("layers"), batch, OBJECTIVE, at="position")
        by_hand = layers_by_hand(weights, batch.ids, OBJECTIVE)
        close(
            result.values, by_hand["word"][1], 1e-12
        )  # the position's row is added to the word's row, so both have the same gradient
        np.testing.assert_array_equal(result.ids, np.tile(np.arange(4), (3, 1)))
        np.testing.assert_array_equal(result.activations, weights["E2"][result.ids])
        expected = np.zeros_like(weights["E2"])
        expected[:4] = by_hand["word"][1].sum(0)
        close(result.table().to_dense(), expected, 1e-12)

    def test_a_module_goes_by_its_path_with_the_occurrence(self, model: Any) -> None:
        batch, built = example_batch(), model("repeated")
        by_hand = layers_by_hand(example_weights(), batch.ids, OBJECTIVE)
        paths = {point.path for point in embgrad.points(built, batch) if any("layer" in role for role in point.roles)}
        (path,) = paths
        with pytest.raises(embgrad.errors.AmbiguousPointError, match=rf"fits 3 points: {path}#0 .*{path}#2"):
            embgrad.gradients(built, batch, OBJECTIVE, at=path)
        names = [f"{path}#0", f"{path}#1", f"{path}:input#1"]
        first, second, taken = embgrad.gradients(built, batch, OBJECTIVE, at=names).values()
        close(first.values, by_hand["layer.0"][1], 1e-12)
        close(second.values, by_hand["layer.1"][1], 1e-12)
        close(taken.values, by_hand["layer.0"][1], 1e-12)
        close(taken.activations, by_hand["layer.0"][0], 1e-12)
        with pytest.raises(embgrad.errors.UnknownPointError, match=r"reached 3 time\(s\)"):
            embgrad.gradients(built, batch, OBJECTIVE, at=f"{path}#3")

    def test_a_role_that_a_model_lacks_says_so(self, model: Any) -> None:
        batch, built = example_batch(), model("layers")
        for name, message in {
            "layer.3": r"has 3 layers: expected layer.0 to layer.2",
            "layer.-4": r"has 3 layers",
            "type": r"makes no lookup by type",
            "embedings": r"Did you mean 'embed",
        }.items():
            with pytest.raises(embgrad.errors.UnknownPointError, match=message):
                embgrad.gradients(built, batch, OBJECTIVE, at=name)
        with pytest.raises(embgrad.errors.UnknownPointError, match="makes no lookup by position"):
            embgrad.gradients(model("mean"), batch, OBJECTIVE, at="position")

    def test_as_many_examples_as_positions(self, model: Any) -> None:
        ids = example_batch().ids[:, :3]
        by_hand = layers_by_hand(example_weights(), ids, OBJECTIVE)
        for role, gradient in ((role, by_hand[role][1]) for role in ROLES):
            close(embgrad.gradients(model("layers"), ids, OBJECTIVE, at=role).values, gradient, 1e-12)

    def test_layers_in_micro_batches_and_one_by_one(self, model: Any) -> None:
        batch, labels = example_batch(), embgrad.CrossEntropy([0, 2, 1])
        whole = embgrad.gradients(model("layers"), batch, labels, at="layer.1")
        for options in ({"batch_size": 2}, {"split": True}):
            other = embgrad.gradients(model("layers"), batch, labels, at="layer.1", **options)
            close(other.values, whole.values, 1e-12)
            close(other.activations, whole.activations, 1e-12)

    def test_a_layer_has_no_table(self, model: Any) -> None:
        result = embgrad.gradients(model("layers"), example_batch(), OBJECTIVE, at="layer.0")
        for method in (result.table, result.per_example):
            with pytest.raises(embgrad.errors.PointError, match=r"'layer.0' is no lookup"):
                method()
        assert result.saliency().shape == (3, 4)

    @pytest.mark.parametrize("at", ["layer.1", "position", "embeddings"])
    def test_state_after_points(self, harness: Harness, model: Any, at: str) -> None:
        built = model("layers")
        harness.disturb(built)
        before = harness.state(built)
        embgrad.points(built, example_batch())
        embgrad.gradients(built, example_batch(), OBJECTIVE, at=at)
        with pytest.raises(embgrad.errors.OutputError):
            embgrad.gradients(built, example_batch(), embgrad.Sum(output="nothing"), at=at)
        assert harness.state(built) == before
