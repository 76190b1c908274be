"""The conformance checks of weights: read as copies, written in place, and restored bit for bit."""

from __future__ import annotations

import contextlib
from typing import Any, Final

import numpy as np
import pytest

import embgrad
from embgrad.backend.registry import backend_named
from embgrad.engine.weights import depth_of, substitute, weights_of
from embgrad.testing.examples import close, example_batch, example_weights, expect_same, needs
from embgrad.testing.harness import Harness

__all__ = ["WeightChecks", "WeightReadingChecks"]

OBJECTIVE: Final = embgrad.Projection([1.0, -2.0, 0.5])


@needs("weights")
class WeightReadingChecks:
    """The checks that a backend with the ability "weights" must pass, whether it computes gradients or values alone."""

    def test_the_weights_of_a_model(self, harness: Harness, model: Any) -> None:
        expected = example_weights()
        for precision in harness.precisions:
            built = harness.build("hidden", expected, dtype=precision)
            by_name = {weight.name: weight for weight in weights_of(built)}
            for key in ("E", "W1", "b1", "W", "b"):
                name, transposed = _name_of(harness, built, key)
                value = by_name[name].get()
                assert value.shape == by_name[name].shape
                assert by_name[name].dtype == precision
                assert value.dtype == ("float64" if precision == "float64" else "float32")
                close(value.T if transposed else value, expected[key], 1e-15 if precision == "float64" else 1e-2)
            paths = backend_named(harness.backend).paths(built)
            assert all(weight.module == "" or weight.module in paths for weight in by_name.values())
            assert depth_of(built) == sum(len(weight.shape) > 1 for weight in by_name.values()) >= 3

    def test_frozen_weights_are_weights(self, model: Any) -> None:
        names = [weight.name for weight in weights_of(model("hidden"))]
        assert [weight.name for weight in weights_of(model("hidden", frozen=True))] == names
        assert len(set(names)) == len(names)

    def test_a_shared_weight_is_listed_once(self, harness: Harness, model: Any) -> None:
        built = model("tied")
        table = example_weights()["E"]
        same = [
            weight.name
            for weight in weights_of(built)
            if table.tobytes() in (weight.get().tobytes(), weight.get().T.tobytes())
        ]
        assert same == [harness.parameter(built, "E")[0]]

    def test_a_weight_that_is_read_is_a_copy(self, harness: Harness, model: Any) -> None:
        built = model("hidden")
        harness.disturb(built)
        before = harness.state(built)
        for weight in weights_of(built):
            value = weight.get()
            assert value.flags.owndata
            assert value.flags.c_contiguous
            value[...] = 0
        expect_same(harness.state(built), before)

    def test_rows_of_a_weight_are_copies_of_those_rows(self, harness: Harness) -> None:
        indices = np.array([7, 0, 39, 7])
        for precision in harness.precisions:
            built = harness.build("hidden", example_weights(), dtype=precision)
            harness.disturb(built)
            before = harness.state(built)
            name, _ = _name_of(harness, built, "E")
            (weight,) = (weight for weight in weights_of(built) if weight.name == name)
            rows = weight.rows(indices)
            assert rows.flags.c_contiguous
            assert rows.dtype == weight.get().dtype
            np.testing.assert_array_equal(rows, weight.get()[indices])
            rows[...] = 0
            weight.rows(np.arange(3))[...] = 0  # neighbours in memory, which a framework may return as a view
            expect_same(harness.state(built), before)

    @pytest.mark.parametrize("raised", [None, RuntimeError("the body broke"), KeyboardInterrupt()])
    def test_weights_are_restored_bit_for_bit(self, harness: Harness, raised: BaseException | None) -> None:
        for precision in harness.precisions:
            built = harness.build("hidden", example_weights(), dtype=precision)
            harness.disturb(built)
            by_name = {weight.name: weight for weight in weights_of(built)}
            values = {name: weight.get() for name, weight in by_name.items()}
            before = harness.state(built)
            expected = contextlib.nullcontext() if raised is None else pytest.raises(type(raised))
            changed = {name: value * 3 + 1 for name, value in values.items()}
            with expected, substitute(built, changed):
                assert all((by_name[name].get() != value).any() for name, value in values.items())
                if raised is not None:
                    raise raised
            after = {weight.name: weight.get() for weight in weights_of(built)}
            assert all(after[name].tobytes() == value.tobytes() for name, value in values.items())
            expect_same(harness.state(built), before)

    def test_values_that_do_not_fit_are_refused_before_any_weight_is_written(
        self, harness: Harness, model: Any
    ) -> None:
        built = model("hidden")
        before = harness.state(built)
        name, transposed = _name_of(harness, built, "W")
        bias, _ = _name_of(harness, built, "b")
        good = {bias: np.zeros(3)}
        shape = example_weights()["W"].T.shape if transposed else example_weights()["W"].shape
        wrong: list[tuple[dict[str, Any], str]] = [
            ({f"{name}s": np.zeros(shape)}, f"no weight '{name}s'.*Did you mean '{name}'"),
            ({name: np.zeros(shape[::-1])}, r"transpose it"),
            ({name: np.zeros(7)}, r"shape \(7,\): expected"),
            ({name: "seven"}, "real numbers"),
        ]
        for values, message in wrong:
            with pytest.raises(embgrad.EmbgradError, match=message), substitute(built, {**good, **values}):
                raise AssertionError("nothing is put")
            expect_same(harness.state(built), before)


@needs("weights")
class WeightChecks(WeightReadingChecks):
    """The checks that a backend with the ability "weights" and with gradients must pass."""

    def test_a_written_weight_changes_the_gradient(self, harness: Harness, model: Any) -> None:
        """Check that after a `put` the gradient is that of a model which was built with these values."""
        batch, random = example_batch(), np.random.default_rng(9)
        for key in ("E", "W1", "b1", "W"):
            built, changed = model("hidden"), example_weights()
            embgrad.gradients(built, batch, OBJECTIVE)  # so that a compiled graph exists, which could become outdated
            changed[key] = random.normal(size=changed[key].shape)
            expected = embgrad.gradients(harness.build("hidden", changed), batch, OBJECTIVE)
            name, transposed = _name_of(harness, built, key)
            value = changed[key].T if transposed else changed[key]
            with substitute(built, {name: value}):
                meanwhile = embgrad.gradients(built, batch, OBJECTIVE)
            close(meanwhile.values, expected.values, 1e-12)
            close(meanwhile.objective, expected.objective, 1e-12)
            (put,) = (weight.put for weight in weights_of(built) if weight.name == name)
            put(value)
            close(embgrad.gradients(built, batch, OBJECTIVE).values, expected.values, 1e-12)

    def test_parts_are_numbered(self, harness: Harness, model: Any) -> None:
        first, second = model("mean"), model("hidden")
        names = [weight.name for weight in weights_of([first, second])]
        assert f"1.{_name_of(harness, second, 'W1')[0]}" in names
        assert all(name.startswith(("0.", "1.")) for name in names)
        assert len(weights_of([first, first])) == len(weights_of(first))

    def test_the_provenance_has_the_depth(self, model: Any) -> None:
        for architecture in ("mean", "layers"):
            built = model(architecture)
            result = embgrad.gradients(built, example_batch(), OBJECTIVE)
            assert result.provenance["matrices"] == depth_of(built)


def _name_of(harness: Harness, built: Any, key: str) -> tuple[str, bool]:
    """Return the name of a weight of the suite, resolved if several have the same name, and whether it is stored transposed."""
    name, transposed = harness.parameter(built, key)
    expected = example_weights()[key]
    for weight in weights_of(built):
        value = weight.get().T if transposed else weight.get()
        if (
            weight.name.partition("#")[0] == name
            and value.shape == expected.shape
            and np.allclose(value, expected, 1e-2, 1e-2)
        ):
            return weight.name, transposed
    raise AssertionError(f"no weight of the model is {key}")
