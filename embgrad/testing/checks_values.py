"""The conformance checks of a backend that computes values only: a subclass of `ValuesSuite` has a fixture `harness`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pytest

import embgrad
from embgrad.backend.protocol import Request
from embgrad.backend.registry import backend_named, bind
from embgrad.engine.weights import substitute, weights_of
from embgrad.testing.checks_weights import WeightReadingChecks
from embgrad.testing.examples import (
    CLOSED_FORM,
    EXAMPLES,
    VOCAB,
    close,
    example_batch,
    example_weights,
    expect_same,
    layers_by_hand,
    needs,
    softmax,
)
from embgrad.testing.harness import Harness

__all__ = ["VALUES", "ValuesSuite", "logits_by_hand"]

#: The architectures of the suite that a backend without gradients builds.
VALUES: Final = (
    *("mean", "hidden", "probabilities", "masked", "positions", "named", "twice", "two_tables", "flat", "time_major"),
    *("scaled", "positional", "no_lookup", "layers", "repeated", "tied", "mixing", "raises"),
)

#: Those of them that return logits.
SCORING: Final = tuple(name for name in VALUES if name not in ("named", "raises"))

OBJECTIVE: Final = embgrad.Projection([1.0, -2.0, 0.5])

#: Calls that need gradients or another ability that is absent, by their names, with what the messages say.
REFUSED: Final[Mapping[str, tuple[str, Callable[[Any, embgrad.TokenBatch], Any]]]] = {
    "gradients": ("values only", lambda model, batch: embgrad.gradients(model, batch, OBJECTIVE)),
    "saliency": ("values only", lambda model, batch: embgrad.attribute(model, batch, OBJECTIVE, "saliency")),
    "substitutions": ("values only", lambda model, batch: embgrad.substitutions(model, batch, OBJECTIVE, top=3)),
    "tables": ("values only", lambda model, batch: embgrad.tables.table_gradients(model, batch, OBJECTIVE)),
    "parameters": ("values only", lambda model, batch: embgrad.tables.parameter_gradients(model, batch, OBJECTIVE)),
    "compile": ("values only", lambda model, batch: embgrad.gradients(model, batch, OBJECTIVE, compile=True)),
    "capture": ("'capture'", lambda model, batch: embgrad.capture(model).__enter__()),
    "perturbed": ("'perturb'", lambda model, batch: embgrad.perturbed(model, {"word": np.zeros(())}).__enter__()),
    "training": ("'training'", lambda model, batch: embgrad.evaluate(model, batch, OBJECTIVE, training=True)),
}


@needs("override", "add")
class ValueChangeChecks:
    """The checks that a backend without gradients and with the abilities "override" and "add" must pass."""

    @pytest.mark.parametrize("architecture", ["layers", "repeated"])
    @pytest.mark.parametrize("option", ["override", "add"])
    @pytest.mark.parametrize(
        "roles", ["word", "layer.0", "embeddings layer.1", "word embeddings layer.0 layer.1 layer.2"]
    )
    def test_changes_at_roles(self, model: Any, architecture: str, option: str, roles: str) -> None:
        batch, random = example_batch(), np.random.default_rng(3)
        arrays = {role: random.normal(size=(3, 4, 5)) for role in roles.split()}
        logits, _ = layers_by_hand(example_weights(), batch.ids, OBJECTIVE, **{option: arrays})["logits"]
        expected, _ = OBJECTIVE.evaluate(logits, batch)
        built, changes = model(architecture), {"override": None, "add": None, option: arrays}
        for size in (None, 2):
            values = embgrad.evaluate(
                built, batch, OBJECTIVE, override=changes["override"], add=changes["add"], batch_size=size
            )
            close(values, expected, 1e-12)
        plain, _ = OBJECTIVE.evaluate(logits_by_hand(architecture, example_weights(), batch), batch)
        close(embgrad.evaluate(built, batch, OBJECTIVE), plain, 1e-12)

    def test_a_function_gets_what_arrives_and_its_result_is_read(self, model: Any) -> None:
        batch, built, arrived = example_batch(), model("layers"), list[np.ndarray]()
        keys = {role: point.key for point in embgrad.points(built, batch) for role in point.roles}
        new = np.random.default_rng(3).normal(size=(3, 4, 5))

        def change(value: np.ndarray) -> np.ndarray:
            arrived.append(value.copy())
            value[...] = 0
            return new

        override = {keys["layer.0"]: lambda value: 2 * value, keys["layer.1"]: change}
        request = Request((keys["layer.1"], keys["layer.2"]), override=override, pullback=False)
        run = bind(built).run(batch, request)
        by_hand = layers_by_hand(example_weights(), batch.ids, OBJECTIVE)
        twice = layers_by_hand(example_weights(), batch.ids, OBJECTIVE, {"layer.0": 2 * by_hand["layer.0"][0]})
        close(arrived[0], twice["layer.1"][0], 1e-12)
        np.testing.assert_array_equal(run.points[keys["layer.1"]].activation, new)
        after = layers_by_hand(example_weights(), batch.ids, OBJECTIVE, {"layer.1": new})
        close(run.points[keys["layer.2"]].activation, after["layer.2"][0], 1e-12)

    def test_a_function_that_raises_leaves_no_trace(self, harness: Harness, model: Any) -> None:
        batch, built = example_batch(), model("layers")
        before, plain = harness.state(built), embgrad.evaluate(built, batch, OBJECTIVE)
        with pytest.raises(ZeroDivisionError):
            embgrad.evaluate(built, batch, OBJECTIVE, override={"layer.1": lambda value: 1 / 0})
        expect_same(harness.state(built), before)
        np.testing.assert_array_equal(embgrad.evaluate(built, batch, OBJECTIVE), plain)

    def test_occlusion_is_the_difference_to_the_batch_with_other_ids(self, model: Any) -> None:
        batch, built = example_batch(), model("hidden")
        made = embgrad.attribute(built, batch, OBJECTIVE, embgrad.methods.Occlusion(3))
        for position in range(batch.shape[1]):
            ids = batch.ids.copy()
            ids[:, position] = 3
            without = embgrad.evaluate(built, batch.replace(ids=ids), OBJECTIVE)
            expected = embgrad.evaluate(built, batch, OBJECTIVE) - without
            np.testing.assert_allclose(made.scores[:, position], expected, atol=1e-12)


class ValuesSuite(WeightReadingChecks, ValueChangeChecks):
    """The checks that a backend without gradients must pass. A subclass defines the fixture `harness`."""

    @pytest.fixture
    def model(self, harness: Harness) -> Callable[..., Any]:
        """Return a function that builds a model of the suite in the harness's framework."""

        def build(architecture: str, dtype: str = "float64", **options: Any) -> Any:
            return harness.build(architecture, example_weights(dtype), **options)

        build.harness = harness  # type: ignore[attr-defined]
        return build

    def test_every_architecture_builds_and_is_owned(self, harness: Harness, model: Any) -> None:
        backend = backend_named(harness.backend)
        assert {"word", "modules", "weights"} <= backend.supports <= embgrad.backend.ABILITIES.keys()
        assert backend.versions()
        for architecture in VALUES:
            assert backend.owns(model(architecture))
        for other in (None, "mean", "mean.onnx", 3, [], {}, np.zeros(3), object(), int, print):
            assert not backend.owns(other)

    # Values

    @pytest.mark.filterwarnings("ignore::embgrad.EmbgradWarning")  # most of the models take no mask
    @pytest.mark.parametrize("architecture", SCORING)
    def test_evaluate_is_the_closed_form(self, harness: Harness, architecture: str) -> None:
        batch = example_batch(masked=architecture in ("masked", "positions"))
        objective = embgrad.Sum() if architecture == "tied" else OBJECTIVE
        for dtype in harness.precisions:
            built = harness.build(architecture, example_weights(), dtype=dtype)
            expected, _ = objective.evaluate(logits_by_hand(architecture, example_weights(), batch), batch)
            close(embgrad.evaluate(built, batch, objective), expected, CLOSED_FORM[dtype])
            if architecture != "mixing":
                close(embgrad.evaluate(built, batch, objective, batch_size=2), expected, CLOSED_FORM[dtype])

    def test_outputs_by_their_names(self, model: Any) -> None:
        batch, weights = example_batch(), example_weights()
        hidden = np.tanh(weights["E"][batch.ids] @ weights["W1"] + weights["b1"])
        close(embgrad.evaluate(model("named"), batch, embgrad.Sum(output="sequence")), hidden.sum((1, 2)), 1e-12)
        close(
            embgrad.evaluate(model("named"), batch, embgrad.Sum(output="pooler_output")), hidden.mean(1).sum(1), 1e-12
        )
        with pytest.raises(embgrad.errors.OutputError, match=r"no output 'nothing': there are 'last_hidden_state'"):
            embgrad.evaluate(model("named"), batch, embgrad.Sum(output="nothing"))

    @pytest.mark.parametrize("architecture", ["mean", "flat", "time_major", "scaled", "positional", "tied", "layers"])
    def test_values_at_the_lookup_are_the_rows(self, harness: Harness, architecture: str) -> None:
        batch, weights = example_batch(), example_weights()
        for dtype in harness.precisions:
            built = harness.build(architecture, weights, dtype=dtype)
            read = bind(built).run(batch, Request(("word",), pullback=False)).points["word"]
            assert read.lookup is not None
            assert read.lookup.layout is not None
            rows = read.lookup.layout.vectors(read.activation)
            np.testing.assert_array_equal(rows, weights["E"][batch.ids].astype(dtype))
            assert read.activation.flags.owndata
            np.testing.assert_array_equal(embgrad.tables.embedding_table(built, batch), weights["E"].astype(dtype))

    @pytest.mark.parametrize("architecture", ["layers", "repeated"])
    def test_values_at_each_role(self, model: Any, architecture: str) -> None:
        batch, built = example_batch(), model(architecture)
        keys = {role: point.key for point in embgrad.points(built, batch) for role in point.roles}
        assert keys.keys() == {"word", "position", "embeddings", "layer.0", "layer.1", "layer.2", "layer.-1"}
        by_hand = layers_by_hand(example_weights(), batch.ids, OBJECTIVE)
        run = bind(built).run(batch, Request(tuple(keys.values()), pullback=False))
        for role in keys.keys() - {"position"}:
            close(run.points[keys[role]].activation, by_hand[role][0], 1e-12)

    def test_the_inputs_of_modules_are_points(self, model: Any) -> None:
        batch, built = example_batch(), model("layers")
        points = {point.key: point for point in bind(built).points(batch)}
        first = next(point for point in points.values() if "layer.0" in point.roles)
        entering = points[first.key.replace(":output", ":input")]
        assert entering.time < first.time
        value = bind(built).run(batch, Request((entering.key,), pullback=False)).points[entering.key].activation
        close(value, layers_by_hand(example_weights(), batch.ids, OBJECTIVE)["embeddings"][0], 1e-12)
        assert points[entering.key].shape == value.shape

    def test_recorded_points_are_those_of_a_list(self, model: Any) -> None:
        batch, built = example_batch(), model("layers")
        run = bind(built).run(batch, Request(("word",), record=True, pullback=False))
        assert run.reached is not None
        listed = [(point.key, point.roles, point.shape, point.time) for point in bind(built).points(batch)]
        assert [(point.key, point.roles, point.shape, point.time) for point in run.reached] == listed

    def test_lookups_of_the_ids_in_two_tables(self, model: Any) -> None:
        for architecture, paths in (("twice", 1), ("two_tables", 2)):
            seen = [point for point in embgrad.points(model(architecture), example_batch()) if "word" in point.roles]
            assert (len(seen), len({point.path for point in seen})) == (2, paths)

    def test_a_written_weight_changes_the_values(self, harness: Harness, model: Any) -> None:
        batch, built = example_batch(), model("hidden")
        before = embgrad.evaluate(built, batch, OBJECTIVE)
        for key in ("E", "W1", "b1", "W"):
            changed = {**example_weights(), key: np.random.default_rng(9).normal(size=example_weights()[key].shape)}
            name, transposed = harness.parameter(built, key)
            with substitute(built, {name: changed[key].T if transposed else changed[key]}):
                meanwhile = embgrad.evaluate(built, batch, OBJECTIVE)
            close(meanwhile, OBJECTIVE.evaluate(logits_by_hand("hidden", changed, batch), batch)[0], 1e-12)
            np.testing.assert_array_equal(embgrad.evaluate(built, batch, OBJECTIVE), before)

    # The batch

    @pytest.mark.filterwarnings("ignore::embgrad.EmbgradWarning")  # types of zeros may be dropped
    def test_a_batch_is_accepted_in_every_form(self, model: Any) -> None:
        batch, built = example_batch(masked=True), model("masked")
        expected = embgrad.evaluate(built, batch, OBJECTIVE)
        floats = {"input_ids": batch.ids.astype(np.float32), "attention_mask": batch.real}
        for form in (batch.to_huggingface(), batch.to_tfhub(), batch.to_keras_hub(), floats):
            np.testing.assert_array_equal(embgrad.evaluate(built, form, OBJECTIVE), expected)

    def test_a_mask_that_the_model_cannot_take_is_a_warning(self, model: Any) -> None:
        with pytest.warns(embgrad.EmbgradWarning, match="cannot take the mask"):
            embgrad.evaluate(model("mean"), example_batch(masked=True), OBJECTIVE)

    # Mistakes

    def test_an_id_outside_the_table_is_named(self, harness: Harness, model: Any) -> None:
        ids = example_batch().ids.copy()
        ids[1, 2] = VOCAB
        for architecture in ("mean", "time_major", "flat"):
            built = model(architecture)
            before = harness.state(built)
            with pytest.raises(
                embgrad.errors.BatchError, match=r"id 40 at example 1, position 2 .*40 rows: expected 0 to"
            ):
                embgrad.evaluate(built, ids, OBJECTIVE)
            expect_same(harness.state(built), before)

    def test_a_model_without_a_lookup_of_the_ids_has_no_word(self, model: Any) -> None:
        assert not any(point.lookup for point in embgrad.points(model("no_lookup"), example_batch()))
        with pytest.raises(embgrad.errors.PointNotReachedError, match="no lookup whose indices are the batch's ids"):
            bind(model("no_lookup")).run(example_batch(), Request(("word",), pullback=False))

    @pytest.mark.parametrize("refused", REFUSED)
    def test_what_needs_gradients_is_refused(self, harness: Harness, model: Any, refused: str) -> None:
        built = model("hidden")
        before = harness.state(built)
        message, call = REFUSED[refused]
        with pytest.raises(embgrad.errors.UnsupportedError, match=message):
            call(built, example_batch())
        expect_same(harness.state(built), before)

    def test_a_request_with_a_pullback_is_refused(self, model: Any) -> None:
        class Pulled:
            outputs = (None,)

            def reads(self, name: str | None, shape: tuple[int, ...]) -> None:
                return None

            def __call__(self, outputs: Mapping[str | None, np.ndarray]) -> embgrad.backend.Response:
                return embgrad.backend.Response(np.zeros(EXAMPLES), [{None: np.ones_like(outputs[None])}])

        with pytest.raises(embgrad.errors.UnsupportedError, match="pullback=False"):
            bind(model("mean")).run(example_batch(), Request(("word",), (Pulled(),)))

    def test_a_model_that_raises_can_be_run_again(self, harness: Harness, model: Any) -> None:
        built = model("raises")
        before = harness.state(built)
        for _ in range(2):
            with pytest.raises(embgrad.EmbgradError):
                embgrad.evaluate(built, example_batch(), OBJECTIVE)
        expect_same(harness.state(built), before)

    # No trace

    @pytest.mark.parametrize("architecture", ["hidden", "layers", "tied"])
    def test_state_after_each_call(self, harness: Harness, model: Any, architecture: str) -> None:
        built, batch = model(architecture), example_batch()
        harness.disturb(built)
        before = harness.state(built)
        embgrad.points(built, batch)
        embgrad.evaluate(built, batch, embgrad.Sum())
        embgrad.tables.embedding_table(built, batch)
        bind(built).run(batch, Request(("word",), pullback=False)).points["word"].activation[...] = 0
        for weight in weights_of(built):
            weight.get()[...] = 0
        expect_same(harness.state(built), before)

    def test_four_threads_on_one_model(self, model: Any) -> None:
        built, batch = model("hidden"), example_batch()
        expected = embgrad.evaluate(built, batch, OBJECTIVE)
        made: list[np.ndarray] = []
        threads = [
            threading.Thread(target=lambda: made.extend(embgrad.evaluate(built, batch, OBJECTIVE) for _ in range(5)))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(made) == 20
        for values in made:
            np.testing.assert_array_equal(values, expected)


def logits_by_hand(architecture: str, weights: Mapping[str, np.ndarray], batch: embgrad.TokenBatch) -> np.ndarray:
    """Return the logits of an architecture of `SCORING` in float64, see `ARCHITECTURES`."""
    ids, real = batch.ids, batch.real[..., None]
    rows, other, head, bias = weights["E"][ids], weights["E2"], weights["W"], weights["b"]

    def bend(hidden: np.ndarray) -> np.ndarray:
        return np.asarray(np.tanh(hidden @ weights["W1"] + weights["b1"]))

    mean = rows.mean(1)
    if architecture == "positions":
        return np.asarray(bend(rows) @ head + bias)
    if architecture == "tied":
        return np.asarray(bend(rows) @ weights["E"].T)
    if architecture == "probabilities":
        return softmax(mean @ head + bias)
    if architecture == "no_lookup":
        return np.asarray(ids.mean(1, keepdims=True) @ head[:1] + bias)
    if architecture in ("layers", "repeated"):
        return layers_by_hand(weights, ids, OBJECTIVE)["logits"][0]
    pooled = {
        "hidden": bend(mean),
        "masked": (rows * real).sum(1) / real.sum(1),
        "twice": mean + np.tanh(rows).mean(1),
        "two_tables": mean + np.tanh(other[ids]).mean(1),
        "scaled": 3 * mean,
        "positional": np.tanh(rows + other[: ids.shape[1]]).mean(1),
        "mixing": mean - mean.mean(0),
    }
    return np.asarray(pooled.get(architecture, mean) @ head + bias)
