"""override, add and edit: what goes on in place of values and gradients, as arrays and as functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.numerics import differences
from tests.unit.refusals import refused
from tests.unit.tensorlike import TorchLike

DIM, CLASSES, EXAMPLES, POSITIONS = 4, 3, 3, 2
IDS = np.array([[3, 5], [2, 9], [7, 1]])
WEIGHTS = {
    "E": np.random.default_rng(0).normal(size=(12, DIM)),
    "pos": np.random.default_rng(1).normal(size=(6, DIM)),
    "W": np.random.default_rng(2).normal(size=(DIM, DIM)),
    "H": np.random.default_rng(3).normal(size=(DIM, CLASSES)),
}
OBJECTIVE = embgrad.Projection(np.random.default_rng(4).normal(size=(EXAMPLES, CLASSES)))
POINTS = ["word", "position", "embeddings", "layer.0", "layer.1", "layer.-1", "layers.1:input", "pool"]
SHAPES = {**dict.fromkeys(POINTS, (EXAMPLES, POSITIONS, DIM)), "position": (POSITIONS, DIM), "pool": (EXAMPLES, DIM)}


def forward(model: Any, input_ids: np.ndarray) -> Tensor:
    """Run words and positions, three layers that return tuples and dicts, a pool and a head; examples do not interact."""

    def embed(ids: np.ndarray) -> dict[str, Any]:
        rows = lookup(model["E"], ids) + lookup(model["pos"], np.arange(ids.shape[1])[None])
        return {"ids": ids, "rows": rows, "again": rows}

    def layer(x: Tensor, number: int) -> tuple[None, list[Tensor]]:
        return None, [x + (x @ model["W"]).tanh() * (1.0 + number), x]

    def pool(x: Tensor) -> Tensor:
        return x.mean(1).tanh()

    x = model.module("embed", embed, input_ids)["rows"]
    for number in range(3):
        x = model.module(f"layers.{number}", layer, x, number)[1][0]
    return model.module("pool", pool, x) @ model["H"]


def gradients(objective: Any = OBJECTIVE, batch: Any = IDS, **options: Any) -> Any:
    model = ReferenceModel(forward, WEIGHTS)
    return embgrad.gradients(model, batch, objective, **options)


def drawn(name: str, seed: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=SHAPES[name])


@pytest.mark.parametrize("name", POINTS)
def test_the_gradient_at_an_overridden_point_is_that_at_the_new_value(name: str) -> None:
    value = drawn(name)
    result = gradients(at=name, override={name: value})
    seen = np.broadcast_to(value, result.shape)
    np.testing.assert_array_equal(result.activations, seen)
    expected = differences(lambda x: gradients(override={name: x}, at="pool").objective.sum(), value)
    summed = result.values.sum(0) if name == "position" else result.values
    np.testing.assert_allclose(summed, expected, atol=1e-9)
    assert result.vocab is None
    assert result.provenance["override"] == [name]


def test_an_overridden_word_leaves_the_positions_their_gradient() -> None:
    value = drawn("word")
    results = gradients(at=["word", "position"], override={"word": value})
    np.testing.assert_allclose(results["position"].values, results["word"].values, atol=1e-15)
    np.testing.assert_array_equal(results["position"].ids, [[0, 1]] * 3)


@pytest.mark.parametrize("name", ["word", "E", "E#0", "word#0"])
@pytest.mark.parametrize("at", ["word", "E"])
def test_an_overridden_lookup_has_no_table_whatever_its_names(name: str, at: str) -> None:
    result = gradients(at=at, override={name: np.zeros(DIM)})
    assert result.vocab is None
    assert not result.activations.any()
    for ask in (result.table, result.per_example):
        with pytest.raises(
            embgrad.errors.PointError, match=rf"the point '{at}' was overridden, so that there is no table"
        ):
            ask()
    split = gradients(at=at, override={name: np.zeros(DIM)}, split=True)
    assert split.tables is None
    np.testing.assert_allclose(split.values, result.values, atol=1e-15)


def test_edits_at_several_points_and_of_one_tensor_under_several_names() -> None:
    order: list[str] = []

    def noted(name: str, factor: float) -> Callable[[np.ndarray], np.ndarray]:
        return lambda grad: order.append(name) or factor * grad

    plain = gradients()
    edits = {"layer.0": noted("layer.0", 2.0), "layers.1:input": noted("input", 3.0), "layer.2": noted("layer.2", 5.0)}
    np.testing.assert_allclose(gradients(edit=edits).values, 30 * plain.values, rtol=1e-12)
    assert order == ["layer.2", "input", "layer.0"]


@pytest.mark.parametrize("option", ["override", "add", "edit"])
@pytest.mark.parametrize("name", POINTS)
def test_functions_get_a_copy_in_the_public_layout(option: str, name: str) -> None:
    seen: list[np.ndarray] = []

    def change(given: np.ndarray) -> np.ndarray:
        assert given.flags.writeable
        assert given.flags.c_contiguous
        seen.append(given.copy())
        result = np.zeros_like(given) if option == "add" else given.copy()
        given[...] = 7  # nobody else's memory
        return result

    changed, plain = gradients(at=name, **{option: {name: change}}), gradients(at=name)
    times = EXAMPLES if name == "position" and option == "edit" else 1
    assert [item.shape for item in seen] == [SHAPES[name]] * times
    np.testing.assert_array_equal(changed.values, plain.values)
    np.testing.assert_array_equal(changed.activations, plain.activations)


@pytest.mark.parametrize("option", ["override", "add"])
@pytest.mark.parametrize(
    "shape",
    [(), (1,), (DIM,), (POSITIONS, DIM), (POSITIONS, 1), (EXAMPLES, 1, 1), (1, 1, DIM), (EXAMPLES, POSITIONS, DIM)],
)
def test_arrays_broadcast_to_the_shape_of_the_point(option: str, shape: tuple[int, ...]) -> None:
    change = np.random.default_rng(1).normal(size=shape)
    whole = np.broadcast_to(change, (EXAMPLES, POSITIONS, DIM))
    given = change.astype(np.float32).tolist() if shape else float(np.float32(change))
    expected = gradients(at=["word", "layer.1"], **{option: {"word": whole}})
    for item in (change, TorchLike(change)):
        changed = gradients(at=["word", "layer.1"], **{option: {"word": item}})
        np.testing.assert_allclose(changed["layer.1"].values, expected["layer.1"].values, atol=1e-15)
    rounded = gradients(at=["word", "layer.1"], **{option: {"word": given}})
    np.testing.assert_allclose(rounded["layer.1"].values, expected["layer.1"].values, atol=1e-5)


@pytest.mark.parametrize("examples", [2, 4])  # 2 as the positions, too
@pytest.mark.parametrize("name", ["pos", "position"])
def test_arrays_of_what_all_examples_share_are_not_cut(name: str, examples: int) -> None:
    ids, objective = np.arange(2 * examples).reshape(examples, 2) + 3, embgrad.Sum()
    for change in (drawn("position"), drawn("position")[:1], drawn("position")[0]):
        whole = gradients(objective, ids, add={name: change})
        for batch_size in (1, 3):
            pieces = gradients(objective, ids, add={name: change}, batch_size=batch_size)
            np.testing.assert_allclose(pieces.values, whole.values, atol=1e-14)


def test_functions_get_the_examples_that_are_run() -> None:
    seen: list[Any] = []
    gradients(add={"layer.0": lambda given: seen.append(given.shape) or 0}, batch_size=2)
    assert seen == [(2, POSITIONS, DIM), (1, POSITIONS, DIM)]


@pytest.mark.parametrize("batch_size", [None, 1])
def test_a_batch_of_one(batch_size: int | None) -> None:
    change = drawn("word")[:1]
    for split in (False, True):
        result = gradients(
            embgrad.Sum(), IDS[:1], at=["word", "pos"], add={"word": change}, batch_size=batch_size, split=split
        )
        plain = gradients(embgrad.Sum(), IDS, at="word", override={"word": WEIGHTS["E"][IDS] + change})
        np.testing.assert_allclose(result["word"].values, plain.values[:1], atol=1e-14)
        assert result["pos"].shape == (1, POSITIONS, DIM)
    with pytest.raises(
        embgrad.errors.PointError, match=r"add\['word'\] has the shape \(3, 2, 4\): expected .* \(1, 2, 4\)"
    ):
        gradients(embgrad.Sum(), IDS[:1], add={"word": drawn("word")})


@pytest.mark.parametrize("option", [{"split": True}, {"batch_size": 1}, {"batch_size": 2}])
@pytest.mark.parametrize("rows", [3, 2])  # as many positions as examples, too
def test_points_without_an_axis_of_examples_are_not_cut_into_examples(option: dict[str, Any], rows: int) -> None:
    ids = np.arange(3 * rows).reshape(3, rows) + 3
    message = r"the point 'pos' has the shape .* need the examples on its first axis.*or name the point by a role"
    for at in ("pos", ["word", "pos"]):
        with pytest.raises(embgrad.errors.UnsupportedError, match=message):
            gradients(embgrad.Sum(), ids % 12, at=at, **option)
    pooled = gradients(at="pool", **option)
    np.testing.assert_allclose(pooled.values, gradients(at="pool").values, atol=1e-14)


@pytest.mark.parametrize("change", [lambda value: value * 0, np.zeros(2)])
def test_a_model_that_gives_a_point_another_shape_each_time(change: Any) -> None:
    widths = iter([2, 3])

    def turning(model: Any, input_ids: np.ndarray) -> Tensor:
        narrow = model[f"W{next(widths)}"]
        return model.module("narrow", lambda x: x @ narrow, lookup(model["E"], input_ids)).mean(1)

    model = ReferenceModel(turning, {"E": WEIGHTS["E"], "W2": np.ones((DIM, 2)), "W3": np.ones((DIM, 3))}, ["narrow"])
    message = (
        r"the point 'narrow' has the shape \(3, 2, 3\), and had \(3, 2, 2\) in an earlier pass: expected a model that makes "
        "the same calls each time"
    )
    with pytest.raises(embgrad.errors.PointNotReachedError, match=message):
        embgrad.gradients(model, IDS, embgrad.Sum(), add={"narrow": change})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({option: given}, f"{option} is .*: expected a dict by the names of points")
            for option in ("override", "add", "edit")
            for given in (3, "word", ["word"], {3: 1}, {"": 1}, [("word", np.zeros(4))], {("word",): 1})
        ),
        *(
            ({"edit": {"word": given}}, r"edit\['word'\] is .*: expected a function that takes the gradient")
            for given in (0, np.zeros((3, 2, 4)), None, "zero", {"word": 1})
        ),
        ({"add": {"word": lambda given: None}}, r"function add\['word'\] returned None: expected the array to add"),
    ],
)
def test_changes_that_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(embgrad.errors.PointError, match=message):
        gradients(**options)


@pytest.mark.parametrize("option", ["override", "add", "edit"])
@pytest.mark.parametrize("given", [None, {}])
def test_no_changes_at_all(option: str, given: Any) -> None:
    np.testing.assert_array_equal(gradients(**{option: given}).values, gradients().values)
    assert option not in gradients(**{option: given}).provenance


@pytest.mark.parametrize("option", ["override", "add"])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "None|of dtype object"),
        ("1.5", "of dtype <U3: expected an array of real numbers"),
        ([["a"]], "of dtype <U1"),
        (np.array([1 + 2j]), "of dtype complex128"),
        ([1 + 2j], "of dtype complex128"),
        ([[1], [1, 2]], "which is no array of numbers"),
        ({}, "of dtype object"),
        (np.datetime64("2020-01-01"), "of dtype datetime64"),
        (np.ma.masked_array([1.0], [True]), "whose mask would be lost"),
        (np.zeros(7), r"has the shape \(7,\): expected one that broadcasts to the point's, \(3, 2, 4\)"),
        (np.zeros((1, 3, 2, 4)), r"has the shape \(1, 3, 2, 4\)"),
        (np.zeros((2, 3, 4)), r"has the shape \(2, 3, 4\)"),
        ([], r"has the shape \(0,\)"),
    ],
)
def test_arrays_that_are_refused(option: str, given: Any, message: str) -> None:
    with pytest.raises(embgrad.errors.PointError, match=rf"{option}\['word'\] .*({message})"):
        gradients(**{option: {"word": given}})


@pytest.mark.parametrize("option", ["override", "add", "edit"])
@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("abc", r"of dtype <U3: expected an array of real numbers"),
        (1j, r"of dtype complex128"),
        (object(), r"of dtype object"),
        ([[1], [1, 2]], r"the function .* returned .* which is no array of numbers"),
        (np.zeros((2, 2)), r"has the shape \(2, 2\): expected one that broadcasts"),
    ],
)
def test_invalid_return_values_of_a_change_are_refused(option: str, result: Any, message: str) -> None:
    with pytest.raises(embgrad.errors.PointError, match=message):
        gradients(**{option: {"word": lambda given: result}})


@pytest.mark.parametrize("option", ["override", "add"])
def test_values_that_are_not_finite_are_found(option: str) -> None:
    with pytest.raises(embgrad.errors.ObjectiveError, match="the objective is nan"):
        gradients(**{option: {"word": np.nan}})
    with pytest.raises(
        embgrad.errors.NoGradientError, match=r"the gradient at 'word' .* is nan at example 0, position 0"
    ):
        gradients(edit={"word": lambda grad: grad * np.nan})


@pytest.mark.parametrize("option", ["override", "add", "edit"])
def test_one_point_under_two_names_in_one_option(option: str) -> None:
    with refused(
        embgrad.errors.AmbiguousPointError, f"{option} names one point several times, as 'layer.2', 'layer.-1'"
    ):
        gradients(**{option: {"layer.2": lambda x: x, "layer.-1": lambda x: x}})
    with pytest.raises(embgrad.errors.UnknownPointError, match=r"no point 'wrod'.* Did you mean 'word'"):
        gradients(**{option: {"wrod": lambda x: x}})


@pytest.mark.parametrize("batch_size", [None, 2])
def test_shared_activations_can_be_passed_back_as_an_override(batch_size: int | None) -> None:
    actual = gradients(at="position")
    assert actual.activations.shape == (EXAMPLES, POSITIONS, DIM)
    for given_back in (actual.activations, actual.activations[:1], actual.activations[0]):
        again = gradients(at="position", override={"position": given_back}, batch_size=batch_size)
        np.testing.assert_allclose(again.values, actual.values, rtol=1e-6, atol=1e-9)
    moved = gradients(at="word", add={"position": np.ones_like(actual.activations)}, batch_size=batch_size)
    np.testing.assert_array_equal(moved.values, gradients(add={"position": 1.0}, batch_size=batch_size).values)


@pytest.mark.parametrize("option", ["override", "add"])
def test_other_values_for_other_examples_where_they_share_a_tensor(option: str) -> None:
    message = r"with different values for different examples, which share one tensor there: expected one array for all"
    for given_apart in (np.arange(24.0).reshape(EXAMPLES, POSITIONS, DIM), np.zeros((0, POSITIONS, DIM))):
        with pytest.raises(embgrad.errors.PointError, match=message):
            gradients(**{option: {"position": given_apart}})
