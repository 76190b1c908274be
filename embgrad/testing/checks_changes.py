"""The conformance checks of changes at points: `override`, `add` and `edit`, and of certificates."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

import embgrad
from embgrad.testing.examples import close, example_batch, example_weights, expect_same, layers_by_hand, needs
from embgrad.testing.harness import Harness

__all__ = ["ChangeChecks"]

OBJECTIVE: Final = embgrad.Projection([1.0, -2.0, 0.5])

#: An array of the points' shape.
NEW: Final = np.random.default_rng(7).normal(size=(3, 4, 5))


def zero_in_place(grad: np.ndarray) -> None:
    """Set a gradient to zero in place."""
    grad[:] = 0


@needs("modules", "override", "add", "edit")
class ChangeChecks:
    """The checks that a backend with the abilities "override", "add" and "edit" must pass."""

    @pytest.mark.parametrize("role", ["word", "embeddings", "layer.1", "layer.-1"])
    def test_override(self, model: Any, role: str) -> None:
        batch, weights = example_batch(), example_weights()
        by_hand = layers_by_hand(weights, batch.ids, OBJECTIVE, override={role: NEW})
        for new in (NEW, lambda value: NEW, lambda value: value.__setitem__(slice(None), NEW)):
            result = embgrad.gradients(model("layers"), batch, OBJECTIVE, at=role, override={role: new})
            close(result.values, by_hand[role][1], 1e-12)
            close(result.activations, NEW, 1e-12)
            close(result.objective, by_hand["logits"][0] @ OBJECTIVE.vector, 1e-12)
        below = [name for name in ("word", "embeddings", "layer.1") if name != role]
        if role == "layer.-1":
            for name in below:
                with pytest.raises(
                    embgrad.errors.NoGradientError, match=r"only through 'layer.-1', whose value was overridden"
                ):
                    embgrad.gradients(model("layers"), batch, OBJECTIVE, at=name, override={role: NEW})

    def test_override_with_the_points_own_value_changes_nothing(self, model: Any) -> None:
        batch = example_batch()
        plain = embgrad.gradients(model("layers"), batch, OBJECTIVE)
        same = embgrad.gradients(model("layers"), batch, OBJECTIVE, override={"word": lambda value: value})
        np.testing.assert_array_equal(same.values, plain.values)
        np.testing.assert_array_equal(same.objective, plain.objective)
        with pytest.raises(embgrad.errors.PointError, match="was overridden, so that there is no table"):
            same.table()

    def test_add(self, model: Any) -> None:
        batch, weights = example_batch(), example_weights()
        steering = np.linspace(-1, 1, 5)
        for role in ("word", "layer.0"):
            by_hand = layers_by_hand(weights, batch.ids, OBJECTIVE, add={role: steering})
            for name in ("word", role):
                result = embgrad.gradients(model("layers"), batch, OBJECTIVE, at=name, add={role: steering})
                close(result.values, by_hand[name][1], 1e-12)
                close(result.activations, by_hand[name][0], 1e-12)

    def test_override_comes_before_add(self, model: Any) -> None:
        batch = example_batch()
        changes = {"override": {"layer.0": NEW}, "add": {"layer.0": lambda value: 2 * value}}
        result = embgrad.gradients(model("layers"), batch, OBJECTIVE, at="layer.0", **changes)  # type: ignore[call-overload]
        close(result.activations, 3 * NEW, 1e-12)
        by_hand = layers_by_hand(example_weights(), batch.ids, OBJECTIVE, override={"layer.0": 3 * NEW})
        close(result.values, by_hand["layer.0"][1], 1e-12)

    @pytest.mark.parametrize("edit", [zero_in_place, lambda grad: grad * 0, lambda grad: np.zeros(5)])
    def test_an_ablation_leaves_exactly_nothing_upstream(self, model: Any, edit: Any) -> None:
        batch = example_batch()
        by_hand = layers_by_hand(example_weights(), batch.ids, OBJECTIVE)
        at = ["word", "layer.0", "layer.1", "layer.-1"]
        results = embgrad.gradients(model("layers"), batch, OBJECTIVE, at=at, edit={"layer.1": edit})
        for name in ("word", "layer.0", "layer.1"):
            assert not results[name].values.any()
        close(_before(results["layer.1"]), by_hand["layer.1"][1], 1e-12)
        close(results["layer.-1"].values, by_hand["layer.2"][1], 1e-12)
        assert results["layer.0"].before is None

    def test_upstream_sees_the_edited_gradient(self, model: Any) -> None:
        batch = example_batch()
        plain = embgrad.gradients(model("layers"), batch, OBJECTIVE)
        edits = {"layer.1": lambda grad: 3 * grad, "layer.0": lambda grad: -grad, "word": lambda grad: grad / 2}
        edited = embgrad.gradients(model("layers"), batch, OBJECTIVE, edit=edits)
        close(edited.values, -1.5 * plain.values, 1e-12)
        close(_before(edited), -3 * plain.values, 1e-12)
        close(edited.activations, plain.activations, 1e-12)

    def test_an_edit_of_each_examples_own_pullback(self, model: Any) -> None:
        batch = example_batch()
        seen: list[np.ndarray] = []

        def look(grad: np.ndarray) -> np.ndarray:
            seen.append(grad.copy())
            return grad

        split = embgrad.gradients(model("mixing"), batch, OBJECTIVE, split=True, edit={"word": look})
        assert len(seen) == 3
        for example, grad in enumerate(seen):
            np.testing.assert_array_equal(split.values[example], grad[example])
            assert grad[(example + 1) % 3].any()  # in this model the examples depend on each other

    @pytest.mark.parametrize("option", ["override", "add", "edit"])
    @pytest.mark.parametrize("role", ["word", "layer.1"])
    def test_a_call_inside_of_a_change(self, model: Any, option: str, role: str) -> None:
        batch, changed = example_batch(), model("layers")
        for inner in (changed, model("layers")):
            expected = embgrad.gradients(inner, batch, OBJECTIVE)
            results: list[embgrad.results.EmbeddingGradients] = []

            def call(value: np.ndarray, inner: Any = inner, results: Any = results) -> np.ndarray:
                results.append(embgrad.gradients(inner, batch, OBJECTIVE))
                return value

            embgrad.gradients(changed, batch, OBJECTIVE, at=role, **{option: {role: call}})  # type: ignore[call-overload]
            results.append(embgrad.gradients(inner, batch, OBJECTIVE))
            assert len(results) > 1
            for result in results:
                close(result.values, expected.values, 1e-12)
                close(result.objective, expected.objective, 1e-12)

    def test_changes_in_micro_batches(self, model: Any) -> None:
        batch = example_batch()
        changes: dict[str, Any] = {"override": {"word": NEW}, "add": {"layer.0": NEW[:1]}, "edit": {"layer.1": np.tanh}}
        whole = embgrad.gradients(model("layers"), batch, OBJECTIVE, **changes)
        for size in (1, 2):
            pieces = embgrad.gradients(model("layers"), batch, OBJECTIVE, batch_size=size, **changes)
            close(pieces.values, whole.values, 1e-12)
            close(pieces.before if pieces.before is not None else whole.values, whole.values, 1e-12)

    def test_changes_that_do_not_fit(self, model: Any) -> None:
        batch, built = example_batch(), model("layers")
        for options, message in (
            (
                {"override": {"word": np.zeros((3, 5, 5))}},
                r"override\['word'\] has the shape \(3, 5, 5\): .*\(3, 4, 5\)",
            ),
            ({"edit": {"layer.0": lambda grad: grad[:1, :2]}}, r"edit\['layer.0'\] has the shape \(1, 2, 5\)"),
            ({"override": {"layer.9": NEW}}, r"has 3 layers"),
        ):
            with pytest.raises(embgrad.errors.PointError, match=message):
                embgrad.gradients(built, batch, OBJECTIVE, **options)

    @pytest.mark.parametrize("option", ["override", "add", "edit"])
    @pytest.mark.parametrize("error", [OSError("the change broke"), KeyboardInterrupt()])
    def test_state_after_a_change_that_raises(
        self, harness: Harness, model: Any, option: str, error: BaseException
    ) -> None:
        def broken(value: np.ndarray) -> np.ndarray:
            raise error

        built = model("layers")
        harness.disturb(built)
        before = harness.state(built)
        for point in ("word", "layer.1"):
            with pytest.raises(type(error)) as caught:
                embgrad.gradients(built, example_batch(), OBJECTIVE, **{option: {point: broken}})  # type: ignore[call-overload]
            assert caught.value is error
            expect_same(harness.state(built), before)
        embgrad.gradients(built, example_batch(), OBJECTIVE, at="layer.2", **{option: {"layer.1": np.tanh}})  # type: ignore[call-overload]
        expect_same(harness.state(built), before)

    def test_a_certificate_for_a_right_gradient(self, model: Any) -> None:
        batch, labels = example_batch(), embgrad.CrossEntropy([0, 2, 1])
        for dtype, tolerance in (("float64", 1e-5), ("float32", 5e-3)):
            results = embgrad.gradients(model("layers", dtype), batch, labels, at=["word", "layer.1"], check=True)
            for result in results.values():
                certificate = result.certificate
                assert certificate is not None
                gradient = certificate.slopes[0]
                assert gradient.direction == "gradient"
                assert gradient.found == pytest.approx(gradient.expected, rel=tolerance)
                for figure in (certificate.independence, certificate.neighbours, certificate.order):
                    assert figure is not None
                    assert figure < 1e-5


def _before(result: embgrad.results.EmbeddingGradients) -> np.ndarray:
    assert result.before is not None
    return result.before
