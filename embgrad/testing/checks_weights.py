"""The conformance checks of weights: read as copies, written in place, and restored bit for bit."""

from __future__ import annotations

import contextlib
from typing import Any, Final

import numpy as np
import pytest

import embgrad
from embgrad.backend.registry import backend_named
from embgrad.engine.weights import depth_of, substituted, weights_of
from embgrad.testing.examples import close, example_batch, example_weights, expect_same, needs
from embgrad.testing.harness import Harness

__all__ = ["WeightChecks"]

OBJECTIVE: Final = embgrad.Projection([1.0, -2.0, 0.5])


@needs("weights")
class WeightChecks:
    """The checks that a backend with the ability "weights" must pass."""

    def test_the_weights_of_a_model(self, harness: Harness, model: Any) -> None:
        expected = example_weights()
        for precision in harness.precisions:
            built = harness.build("hidden", expected, dtype=precision)
            found = {one.name: one for one in weights_of(built)}
            for weight in ("E", "W1", "b1", "W", "b"):
                name, transposed = _held(harness, built, weight)
                value = found[name].get()
                assert value.shape == found[name].shape
                assert found[name].dtype == precision
                assert value.dtype == ("float64" if precision == "float64" else "float32")
                close(value.T if transposed else value, expected[weight], 1e-15 if precision == "float64" else 1e-2)
            paths = backend_named(harness.backend).paths(built)
            assert all(one.module == "" or one.module in paths for one in found.values())
            assert depth_of(built) == sum(len(one.shape) > 1 for one in found.values()) >= 3

    def test_frozen_weights_are_weights(self, model: Any) -> None:
        names = [one.name for one in weights_of(model("hidden"))]
        assert [one.name for one in weights_of(model("hidden", frozen=True))] == names
        assert len(set(names)) == len(names)

    def test_a_shared_weight_comes_once(self, harness: Harness, model: Any) -> None:
        built = model("tied")
        table = example_weights()["E"]
        same = [
            one.name for one in weights_of(built) if table.tobytes() in (one.get().tobytes(), one.get().T.tobytes())
        ]
        assert same == [harness.parameter(built, "E")[0]]

    def test_what_is_read_is_a_copy(self, harness: Harness, model: Any) -> None:
        built = model("hidden")
        harness.disturb(built)
        before = harness.state(built)
        for one in weights_of(built):
            value = one.get()
            assert value.flags.owndata
            assert value.flags.c_contiguous
            value[...] = 0
        expect_same(harness.state(built), before)

    def test_what_is_put_counts(self, harness: Harness, model: Any) -> None:
        """Check that after a `put` the gradient is that of a model which was built with these values."""
        batch, random = example_batch(), np.random.default_rng(9)
        for weight in ("E", "W1", "b1", "W"):
            built, changed = model("hidden"), example_weights()
            embgrad.gradients(built, batch, OBJECTIVE)  # so that a compiled graph exists, which could become outdated
            changed[weight] = random.normal(size=changed[weight].shape)
            expected = embgrad.gradients(harness.build("hidden", changed), batch, OBJECTIVE)
            name, transposed = _held(harness, built, weight)
            value = changed[weight].T if transposed else changed[weight]
            with substituted(built, {name: value}):
                meanwhile = embgrad.gradients(built, batch, OBJECTIVE)
            close(meanwhile.values, expected.values, 1e-12)
            close(meanwhile.objective, expected.objective, 1e-12)
            (put,) = (one.put for one in weights_of(built) if one.name == name)
            put(value)
            close(embgrad.gradients(built, batch, OBJECTIVE).values, expected.values, 1e-12)

    @pytest.mark.parametrize("raised", [None, RuntimeError("the body broke"), KeyboardInterrupt()])
    def test_the_bits_come_back(self, harness: Harness, raised: BaseException | None) -> None:
        for precision in harness.precisions:
            built = harness.build("hidden", example_weights(), dtype=precision)
            harness.disturb(built)
            named = {one.name: one for one in weights_of(built)}
            kept = {name: one.get() for name, one in named.items()}
            before = harness.state(built)
            expected = contextlib.nullcontext() if raised is None else pytest.raises(type(raised))
            others = {name: value * 3 + 1 for name, value in kept.items()}
            with expected, substituted(built, others):
                assert all((named[name].get() != value).any() for name, value in kept.items())
                if raised is not None:
                    raise raised
            after = {one.name: one.get() for one in weights_of(built)}
            assert all(after[name].tobytes() == value.tobytes() for name, value in kept.items())
            expect_same(harness.state(built), before)

    def test_what_does_not_fit_is_refused_before_anything_is_put(self, harness: Harness, model: Any) -> None:
        built = model("hidden")
        before = harness.state(built)
        name, transposed = _held(harness, built, "W")
        bias, _ = _held(harness, built, "b")
        good = {bias: np.zeros(3)}
        shape = example_weights()["W"].T.shape if transposed else example_weights()["W"].shape
        wrong: list[tuple[dict[str, Any], str]] = [
            ({f"{name}s": np.zeros(shape)}, f"no weight '{name}s'.*Did you mean '{name}'"),
            ({name: np.zeros(shape[::-1])}, r"transpose it"),
            ({name: np.zeros(7)}, r"shape \(7,\): expected"),
            ({name: "seven"}, "real numbers"),
        ]
        for values, message in wrong:
            with pytest.raises(embgrad.EmbgradError, match=message), substituted(built, {**good, **values}):
                raise AssertionError("nothing is put")
            expect_same(harness.state(built), before)

    def test_parts_are_numbered(self, harness: Harness, model: Any) -> None:
        first, second = model("mean"), model("hidden")
        names = [one.name for one in weights_of([first, second])]
        assert f"1.{_held(harness, second, 'W1')[0]}" in names
        assert all(name.startswith(("0.", "1.")) for name in names)
        assert len(weights_of([first, first])) == len(weights_of(first))

    def test_the_depth_stands_in_the_provenance(self, model: Any) -> None:
        for architecture in ("mean", "layers"):
            built = model(architecture)
            result = embgrad.gradients(built, example_batch(), OBJECTIVE)
            assert result.provenance["matrices"] == depth_of(built)


def _held(harness: Harness, built: Any, weight: str) -> tuple[str, bool]:
    """Return the name of a weight of the suite, resolved if several have the same name, and whether it is stored transposed."""
    name, transposed = harness.parameter(built, weight)
    expected = example_weights()[weight]
    for one in weights_of(built):
        value = one.get().T if transposed else one.get()
        if (
            one.name.partition("#")[0] == name
            and value.shape == expected.shape
            and np.allclose(value, expected, 1e-2, 1e-2)
        ):
            return one.name, transposed
    raise AssertionError(f"no weight of the model is {weight}")
