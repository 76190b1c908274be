"""How many examples a forward pass takes that only finds the points, and that the result is as if it had taken all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.testing.conformance import example_weights
from embgrad.testing.reference import ReferenceBackend, ReferenceModel, lookup
from tests.contract.conformance import harness_reference
from tests.contract.conformance.harness_reference import Harness
from tests.unit.refusals import refused

OBJECTIVE = embgrad.Projection([1.0, -2.0, 0.5])


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[int, int]]]:
    made: list[tuple[str, tuple[int, int]]] = []
    points, run = ReferenceBackend.points, ReferenceBackend.run

    def of_points(self: Any, model: Any, batch: Any, call: Any = None) -> Any:
        made.append(("points", batch.shape))
        return points(self, model, batch, call)

    def of_run(self: Any, model: Any, batch: Any, request: Any) -> Any:
        made.append(("run", batch.shape))
        return run(self, model, batch, request)

    monkeypatch.setattr(ReferenceBackend, "points", of_points)
    monkeypatch.setattr(ReferenceBackend, "run", of_run)
    return made


def model(architecture: str = "layers") -> Any:
    return Harness().build(architecture, example_weights())


def ids(examples: int, positions: int) -> np.ndarray:
    return np.random.default_rng(3).permutation(np.arange(1, 40))[: examples * positions].reshape(examples, positions)


@pytest.mark.parametrize("of_time", [False, True])
def test_types_that_are_the_ids_by_chance_and_the_same_either_way(of_time: bool) -> None:
    def forward(model: Any, input_ids: np.ndarray, token_type_ids: np.ndarray) -> Any:
        ids, types = (input_ids.T, token_type_ids.T) if of_time else (input_ids, token_type_ids)
        hidden = (lookup(model["E"], ids) + lookup(model["T"], types)).tanh()
        return hidden.mean(0 if of_time else 1) @ model["W"]

    random = np.random.default_rng(0)
    weights = {name: random.normal(size=(5, 4)) for name in "ET"} | {"W": random.normal(size=(4, 3))}
    same = np.array([[0, 1], [1, 2]])
    actual = embgrad.gradients(
        ReferenceModel(forward, weights), {"input_ids": same, "token_type_ids": same}, OBJECTIVE, at=["type", "word"]
    )
    hidden = np.tanh(weights["E"][same] + weights["T"][same])
    expected = (OBJECTIVE.vector @ weights["W"].T) / 2 * (1 - hidden**2)
    for name, result in actual.items():
        np.testing.assert_allclose(result.values, expected, atol=1e-14, err_msg=name)
        np.testing.assert_array_equal(result.ids, same)
    np.testing.assert_array_equal(actual["type"].activations, weights["T"][same])


def test_positions_in_a_table_as_narrow_as_the_batch_is_long() -> None:
    """Indices of shape (position,) show that there is no example axis."""

    def forward(model: Any, input_ids: np.ndarray) -> Any:
        places = lookup(model["P"], np.arange(input_ids.shape[1]))
        return ((lookup(model["E"], input_ids) + places).tanh().mean(1)) @ model["W"]

    random = np.random.default_rng(0)
    built = ReferenceModel(
        forward, {name: random.normal(size=(8, 2)) for name in "EP"} | {"W": random.normal(size=(2, 3))}
    )
    batch = np.array([[7, 3], [4, 6]])
    actual = embgrad.gradients(built, batch, OBJECTIVE, at="position")
    word = embgrad.gradients(built, batch, OBJECTIVE)
    # A position is added to the word's row, so that it has its gradient.
    np.testing.assert_array_equal(actual.values, word.values)
    np.testing.assert_array_equal(actual.ids, [[0, 1], [0, 1]])


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5)])
@pytest.mark.parametrize("at", ["layer.1", "embeddings", "position", "layer.-1", "E"])
def test_a_point_takes_one_pass(passes: list[Any], shape: tuple[int, int], at: str) -> None:
    batch = ids(*shape)
    actual = embgrad.gradients(model(), batch, OBJECTIVE, at=at)
    assert passes.count(("run", shape)) == 1
    assert ("points", shape) not in passes or (at, shape) == ("position", (5, 5))
    # No path shows which table is that of the positions. As many examples as positions take a probe.
    lists = {"position": ("points", (2, shape[1])), "E": None}.get(at, ("points", (4, 5)) if shape == (5, 5) else None)
    assert [item for item in passes if item[0] == "points"][:1] == ([] if lists is None else [lists])
    alone = [embgrad.gradients(model(), batch[i : i + 1], OBJECTIVE, at=at) for i in range(len(batch))]
    np.testing.assert_allclose(actual.values, np.concatenate([item.values for item in alone]), rtol=1e-12)
    np.testing.assert_array_equal(actual.activations, np.concatenate([item.activations for item in alone]))


def test_several_points_take_one_pass(passes: list[Any]) -> None:
    embgrad.gradients(model(), ids(6, 4), OBJECTIVE, at=["word", "layer.0", "layer.-1"])
    assert passes == [("run", (6, 4))]
    embgrad.gradients(model(), ids(6, 4), OBJECTIVE)
    assert passes[1:] == [("run", (6, 4))]


@pytest.mark.parametrize("shape", [(6, 4), (5, 5)])
@pytest.mark.parametrize("point", ["word", "layer.0", "embeddings", "position", "layers.0:input"])
def test_changes_located_with_a_sub_batch_match_the_whole(
    passes: list[Any], shape: tuple[int, int], point: str
) -> None:
    batch = ids(*shape)
    value = np.random.default_rng(0).normal(size=(shape[1], 5) if point == "position" else (*shape, 5))
    given: list[tuple[str, Any]] = [("add", value), ("override", value), ("add", lambda item: item * 0.1)]
    given += [("edit", lambda item: item * 2)]
    for option, change in given:
        del passes[:]
        built = model()
        actual = embgrad.gradients(built, batch, OBJECTIVE, at="layer.0", **{option: {point: change}})
        assert passes == [("points", (2, shape[1])), ("run", shape)]
        again = embgrad.gradients(built, batch, OBJECTIVE, at="layer.0", **{option: {point: change}})
        assert passes[2:] == [("run", shape)]
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("embgrad.engine.locate.PROBED", 100)
            expected = embgrad.gradients(model(), batch, OBJECTIVE, at="layer.0", **{option: {point: change}})
        assert passes[3] == ("points", shape)
        np.testing.assert_array_equal(actual.values, expected.values)
        np.testing.assert_array_equal(again.values, expected.values)


def test_a_change_that_does_not_fit_is_refused_as_for_the_whole() -> None:
    with refused(embgrad.errors.PointError, "shape (3, 4, 5): expected one that broadcasts to the point's, (6, 4, 5)"):
        embgrad.gradients(model(), ids(6, 4), OBJECTIVE, at="layer.0", add={"layer.0": np.ones((3, 4, 5))})
    names = {"layer.0": np.ones(5), "layers.0": np.ones(5)}
    with pytest.raises(embgrad.errors.AmbiguousPointError, match="add names one point several times"):
        embgrad.gradients(model(), ids(6, 4), OBJECTIVE, at="layer.0", add=names)


def test_a_model_that_takes_no_other_number_of_examples(passes: list[Any]) -> None:
    batch = ids(6, 4)

    def call(built: Any, inputs: Any) -> Any:
        if len(inputs) != 6:
            raise RuntimeError("six, please")
        return built(inputs)

    actual = embgrad.gradients(model(), batch, OBJECTIVE, at="layer.0", call=call)
    assert passes == [("run", (6, 4))]
    np.testing.assert_array_equal(actual.values, embgrad.gradients(model(), batch, OBJECTIVE, at="layer.0").values)


def test_an_error_is_about_the_whole_batch(passes: list[Any]) -> None:
    with pytest.raises(embgrad.errors.UnknownPointError, match=r"has 3 layers: expected layer\.0 to layer\.2"):
        embgrad.gradients(model(), ids(6, 4), OBJECTIVE, at="layer.7")
    wrong = ids(6, 4)
    wrong[5, 3] = 99
    with pytest.raises(embgrad.errors.BatchError, match="id 99 at example 5, position 3"):
        embgrad.gradients(model(), wrong, OBJECTIVE, at="layer.0")


def test_points_found_only_in_a_sub_batch_are_located_in_the_whole(passes: list[Any]) -> None:
    batch = ids(6, 4)
    built = {few: model("layers" if few else "repeated") for few in (True, False)}

    def call(_: Any, inputs: Any) -> Any:
        return built[len(inputs) == 2](inputs)

    actual = embgrad.gradients(list(built.values()), batch, OBJECTIVE, at="layer.2", call=call)
    expected = embgrad.gradients(built[False], batch, OBJECTIVE, at="layer.2")
    np.testing.assert_array_equal(actual.values, expected.values)


@pytest.mark.parametrize("at", ["layer.-1", "layer.-2", "layer"])
def test_a_model_that_uses_more_layers_for_more_examples(passes: list[Any], at: str) -> None:
    whole, early = model("repeated"), model("repeated")

    def early_exit(built: Any, input_ids: np.ndarray) -> Any:
        hidden = harness_reference._embedded(built, input_ids)
        for _ in range(1 if len(input_ids) == 2 else 3):
            hidden = harness_reference._block(built, "layer", "", hidden)
        return harness_reference._classify(built, hidden.mean(1))

    early.forward = early_exit
    if at == "layer":
        with pytest.raises(embgrad.errors.AmbiguousPointError, match="'layer' fits 3 points"):
            embgrad.gradients(early, ids(6, 4), OBJECTIVE, at=at)
        return
    actual = embgrad.gradients(early, ids(6, 4), OBJECTIVE, at=at)
    expected = embgrad.gradients(whole, ids(6, 4), OBJECTIVE, at=at)
    assert actual.provenance["path"] == expected.provenance["path"]
    np.testing.assert_array_equal(actual.values, expected.values)


def test_the_remembered_word_lookup_is_verified() -> None:
    tables, random = ["E"], np.random.default_rng(0)

    def forward(built: Any, input_ids: np.ndarray) -> Any:
        rows = [lookup(built[name], input_ids) for name in tables]
        return {"logits": (rows[0] if len(rows) == 1 else rows[0] + rows[1]).mean(1) @ built["W"]}

    weights = {"E": random.normal(size=(50, 4)), "F": random.normal(size=(50, 4)), "W": random.normal(size=(4, 3))}
    built, batch = ReferenceModel(forward, weights), ids(6, 4)

    def asked() -> embgrad.results.EmbeddingGradients:
        return embgrad.gradients(built, batch, OBJECTIVE, add={"word": 0.5})

    for _ in range(2):
        for name in ("E", "F"):
            tables[:] = [name]
            actual = asked()
            assert actual.provenance["path"] == f"{name}#0"
            np.testing.assert_array_equal(actual.activations, weights[name][batch] + 0.5)
        tables[:] = ["E", "F"]
        with pytest.raises(embgrad.errors.AmbiguousPointError, match="fits 2 lookups"):
            asked()
