"""Capture inside the user's own loop, on the reference: steps, sums, what is kept, and what is said when nothing comes."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.engine.user_passes import PassAxes
from embgrad.results.row_sparse import RowSparse
from embgrad.testing.reference import ReferenceModel, Tensor, lookup, pull_back
from tests.unit.refusals import refused

DIM, CLASSES = 4, 3
IDS = np.array([[3, 5, 8], [2, 9, 3]])
OTHER = np.array([[7, 1, 7], [4, 4, 2]])
LABELS = np.array([0, 2])
WEIGHTS = {
    "E": np.random.default_rng(0).normal(size=(12, DIM)),
    "pos": np.random.default_rng(1).normal(size=(6, DIM)),
    "W": np.random.default_rng(2).normal(size=(DIM, DIM)),
    "H": np.random.default_rng(3).normal(size=(DIM, CLASSES)),
}
MODULES = ["embed", "layers.0", "layers.1", "pool", "count"]


def forward(model: Any, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None) -> Tensor:
    def embed(ids: np.ndarray) -> Tensor:
        return lookup(model["E"], ids) + lookup(model["pos"], np.arange(ids.shape[-1]))

    def layer(x: Tensor) -> tuple[Tensor, None]:
        return x + (x @ model["W"]).tanh(), None

    def pool(x: Tensor) -> Tensor:
        mask = np.ones(x.shape[:2]) if attention_mask is None else attention_mask
        return (x * Tensor(mask[..., None].astype(float))).sum(1).tanh()

    x = model.module("embed", embed, input_ids)
    for number in range(2):
        x = model.module(f"layers.{number}", layer, x)[0]
    return model.module("pool", pool, x) @ model["H"]


def model(function: Any = forward) -> ReferenceModel:
    return ReferenceModel(function, {name: value.copy() for name, value in WEIGHTS.items()}, MODULES)


def slope(logits: Tensor, labels: np.ndarray = LABELS) -> np.ndarray:
    labels = labels[: len(logits.value)]
    return (logits.softmax().value - np.eye(CLASSES)[labels]) / len(labels)


def step(built: ReferenceModel, *batches: Any, rate: float = 0.1, **options: Any) -> None:
    outputs = [built(batch, **options) for batch in batches]
    parameters = list(built.parameters.values())
    gradients = pull_back([(logits, slope(logits)) for logits in outputs], parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            parameter.value = parameter.value - rate * gradient


def by_gradients(built: ReferenceModel, ids: Any = IDS, at: str = "word", **options: Any) -> np.ndarray:
    result = embgrad.gradients(built, ids, embgrad.CrossEntropy(LABELS), at=at, **options)
    return result.values / 2  # their mean, our sum


@pytest.mark.parametrize(
    "at", ["word", "E", "E#0", "word#0", "embeddings", "layer.0", "layer.-1", "layers.1", "pool", "pos"]
)
def test_each_step_is_the_gradient_at_that_step(at: str) -> None:
    built, expected = model(), []
    with embgrad.capture(built, at=at) as tap:
        for ids in (IDS, OTHER, IDS):
            expected.append(by_gradients(built, ids, at))
            step(built, ids)
    assert tap.count == len(tap.steps) == tap.passes == 3
    for item, values in zip(tap.steps, expected, strict=True):
        np.testing.assert_allclose(item.values, values, atol=1e-15)
    assert not np.allclose(expected[0], expected[2])  # training went on
    summed = tap.sum()
    if isinstance(summed, RowSparse):
        tables = [item.table().to_dense() for item in tap.steps]
        np.testing.assert_allclose(summed.to_dense(), sum(tables), atol=1e-14)
        np.testing.assert_allclose(tap.mean().to_dense(), sum(tables) / 3, atol=1e-14)
    else:
        np.testing.assert_allclose(summed, sum(expected), atol=1e-14)
        np.testing.assert_allclose(tap.mean(), sum(expected) / 3, atol=1e-14)
    assert isinstance(summed, RowSparse) == (at in ("word", "E", "E#0", "word#0", "pos"))


def test_a_step_has_the_fields_of_a_result() -> None:
    built = model()
    mask, types = np.array([[1, 1, 1], [1, 1, 0]]), np.array([[0, 0, 1], [0, 1, 1]])
    with embgrad.capture(built) as tap:
        step(built, IDS, attention_mask=mask, token_type_ids=types)
    unmasked = model(lambda own, input_ids, attention_mask: forward(own, input_ids))
    with embgrad.capture(unmasked) as leaks:
        for own in (mask, np.ones_like(mask)):
            step(unmasked, IDS, attention_mask=own)
    leak, none = (one.pad_leak for one in leaks.steps)
    assert leak == np.abs(leaks.steps[0].values[1, 2]).max() > 0 == none
    (item,) = tap.steps
    assert item.objective is None
    assert item.tokens is item.words_of is None
    for name, value in {"ids": IDS, "mask": mask, "types": types, "activations": WEIGHTS["E"][IDS]}.items():
        np.testing.assert_array_equal(getattr(item, name), value)
    assert (item.vocab, item.pad_leak) == (12, 0.0)
    shown = {"captured": True, "split": False, "point": "word", "path": "E#0"}
    assert {name: item.provenance[name] for name in shown} == shown
    assert item.provenance["objective"]["class"] == "captured"
    assert "captured" in repr(item)
    assert repr(tap) == "Tap(at='word', 1 steps, 1 forward passes)"
    assert item.saliency().shape == (2, 3)
    np.testing.assert_allclose(sum(each.to_dense() for each in item.per_example()), item.table().to_dense())


def test_steps_are_copies() -> None:
    built = model()
    with embgrad.capture(built) as tap:
        step(built, IDS)
        before = [getattr(tap.steps[0], name).copy() for name in ("values", "activations", "ids")]
        step(built, OTHER)
        for name, value in zip(("values", "activations", "ids"), before, strict=True):
            np.testing.assert_array_equal(getattr(tap.steps[0], name), value)
            getattr(tap.steps[0], name)[...] = 1
        step(built, IDS)
    assert tap.steps[2].values.std() > 0
    assert not np.shares_memory(tap.steps[1].values, tap.steps[2].values)
    np.testing.assert_array_equal(IDS, [[3, 5, 8], [2, 9, 3]])


def test_a_step_is_saved_and_loaded(tmp_path: Path) -> None:
    built = model()
    for at in ("word", "layer.0", "pool"):
        with embgrad.capture(built, at=at) as tap:
            step(built, IDS)
        tap.steps[0].save(tmp_path / "step.safetensors")
        again = embgrad.load(tmp_path / "step.safetensors")
        assert again.objective is None
        np.testing.assert_array_equal(again.values, tap.steps[0].values)
        assert again.provenance == tap.steps[0].provenance


def test_a_result_without_an_objective_is_otherwise_not_saved(tmp_path: Path) -> None:
    from dataclasses import replace

    result = embgrad.gradients(model(), IDS, embgrad.Sum())
    with pytest.raises(embgrad.EmbgradError, match=r"cannot be saved, since it lacks the arrays \['objective'\]"):
        replace(result, objective=None).save(tmp_path / "g.safetensors")


def test_several_forward_passes_behind_one_loss_are_one_step() -> None:
    built = model()
    expected = [by_gradients(built, ids) for ids in (IDS, OTHER)]
    with embgrad.capture(built) as tap:
        step(built, IDS, OTHER)
    assert (tap.count, tap.passes) == (1, 2)
    np.testing.assert_allclose(tap.steps[0].values, np.concatenate(expected), atol=1e-15)
    np.testing.assert_array_equal(tap.steps[0].ids, np.concatenate([IDS, OTHER]))
    assert tap.steps[0].mask is None


def test_several_forward_passes_of_a_point_with_a_number_for_each_example_are_one_step() -> None:
    def summed(model: Any, input_ids: Any) -> Tensor:
        count = model.module("count", lambda x: x.sum(1).sum(1), lookup(model["E"], input_ids))
        return count.reshape(len(input_ids), 1) @ model["H"][:1]

    built = model(summed)
    expected = [by_gradients(built, ids, "count") for ids in (IDS, OTHER)]
    with embgrad.capture(built, at="count") as tap:
        step(built, IDS, OTHER)
    np.testing.assert_allclose(tap.steps[0].values, np.concatenate(expected), atol=1e-15)
    assert tap.steps[0].values.shape == (4,)


@pytest.mark.parametrize("at", ["word", "layer.0", "pool", "pos"])
def test_forward_passes_of_different_lengths_in_one_step(at: str) -> None:
    built = model()
    short = IDS[:, :2]
    expected = [by_gradients(built, ids, at) for ids in (IDS, short)]
    with embgrad.capture(built, at=at) as tap:
        step(built, IDS, short)
    (item,) = tap.steps
    if at == "pool":
        np.testing.assert_allclose(item.values, np.concatenate(expected), atol=1e-15)
    elif at == "pos":  # a table of positions, looked up by position alone
        np.testing.assert_allclose(item.values, np.concatenate(expected), atol=1e-15)
        np.testing.assert_array_equal(item.ids, [0, 1, 2, 0, 1])
    else:
        np.testing.assert_allclose(item.values[:2], expected[0], atol=1e-15)
        np.testing.assert_allclose(item.values[2:, :2], expected[1], atol=1e-15)
        assert not item.values[2:, 2].any()
        np.testing.assert_array_equal(item.mask, [[1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 1, 0]])
    if at in ("word", "pos"):
        dense = np.zeros((12 if at == "word" else 6, DIM))
        for ids, values in zip((IDS, short), expected, strict=True):
            np.add.at(dense, ids if at == "word" else np.arange(ids.shape[1]), values)
        np.testing.assert_allclose(tap.sum().to_dense(), dense, atol=1e-14)


def test_gradient_accumulation_is_a_step_for_each_backward_pass() -> None:
    built = model()
    expected = [by_gradients(built, ids) for ids in (IDS, OTHER)]
    with embgrad.capture(built) as tap:
        for ids in (IDS, OTHER):  # no update in between
            logits = built(ids)
            pull_back([(logits, slope(logits))], list(built.parameters.values()))
    np.testing.assert_allclose([item.values for item in tap.steps], expected, atol=1e-15)


def test_a_forward_pass_without_a_backward_pass_adds_no_step() -> None:
    built = model()
    with embgrad.capture(built) as tap:
        built(OTHER)  # as in validation
        step(built, IDS)
        built(OTHER)
    assert (tap.count, tap.passes) == (1, 3)
    np.testing.assert_array_equal(tap.steps[0].ids, IDS)


def test_batches_of_different_shapes_in_different_steps() -> None:
    built = model()
    with embgrad.capture(built) as words, embgrad.capture(built, at="layer.0") as layers:
        step(built, IDS)
        step(built, IDS[:, :2])
    assert len(words.sum().rows) == 5
    for ask in (layers.sum, layers.mean):
        with refused(
            embgrad.errors.PointError, "the shapes (2, 3, 4) and (2, 2, 4) in two steps", "Use each of `steps`"
        ):
            ask()


@pytest.mark.parametrize("keep", ["all", "mean"])
def test_passes_are_held_no_longer_than_their_graphs(keep: str) -> None:
    built = model()
    alive = []
    before = {id(item) for item in gc.get_objects() if isinstance(item, embgrad.results.EmbeddingGradients)}

    def own(model: Any, input_ids: Any) -> Tensor:
        logits = forward(model, input_ids)
        alive.append(weakref.ref(logits))
        return logits

    built.forward = own
    with embgrad.capture(built, keep=keep) as tap:
        for _ in range(20):
            step(built, IDS)
        gc.collect()
        assert not [item for item in alive if item() is not None]
        results = [
            item
            for item in gc.get_objects()
            if isinstance(item, embgrad.results.EmbeddingGradients) and id(item) not in before
        ]
        assert len(results) <= (20 if keep == "all" else 1)
    assert tap.count == 20


def test_captures_that_end_in_the_order_in_which_they_began() -> None:
    built = model()
    with embgrad.capture(built) as outer:
        with embgrad.capture(built) as inner:
            step(built, IDS)
        step(built, OTHER)
    assert (outer.count, inner.count) == (2, 1)
    step(built, IDS)
    assert (outer.count, inner.count) == (2, 1)


def test_a_model_that_calls_itself_is_one_pass() -> None:
    def nested(model: Any, input_ids: Any, depth: int = 1) -> Tensor:
        return model(input_ids, depth=0) if depth else forward(model, input_ids)

    built = model(nested)
    with embgrad.capture(built) as tap:
        step(built, IDS)
    assert (tap.count, tap.passes) == (1, 1)


def single(model: Any, input_ids: np.ndarray) -> Tensor:
    """Look up positions in the shape of the ids of one text."""
    return (lookup(model["pos"], np.arange(3)[None]) + lookup(model["E"], input_ids)).tanh().sum(1) @ model["H"]


def test_positions_that_equal_the_ids_in_a_later_step() -> None:
    built, ids = model(single), np.array([[0, 1, 2]])
    with embgrad.capture(built) as tap:
        for item in (IDS[:1], ids):
            step(built, item)
    assert [item.provenance["path"] for item in tap.steps] == ["E#0", "E#0"]
    np.testing.assert_array_equal(tap.steps[1].activations, WEIGHTS["E"][ids])


def test_positions_that_equal_the_ids_in_the_first_step() -> None:
    built = model(single)
    ids = np.array([[0, 1, 2]])
    with pytest.raises(embgrad.errors.AmbiguousPointError, match="'word' fits 2 lookups"), embgrad.capture(built):
        built(ids)
    with embgrad.capture(built, at="E") as tap:
        step(built, ids)
    assert tap.steps[0].provenance["path"] == "E#0"


@pytest.mark.parametrize(
    ("name", "others"),
    [("input_ids", {"labels": LABELS}), ("token_ids", {"labels": np.array([0, -100])}),
        ("anything", {"labels": np.array([0, -100])}), ("x", {"k": 3})],
)  # fmt: skip
def test_the_ids_are_found_by_the_name_of_an_argument(name: str, others: dict[str, Any]) -> None:
    source = f"def call(model, {', '.join([*others, name])}): return forward(model, {name})"
    scope: dict[str, Any] = {"forward": forward}
    exec(source, scope)  # a function whose parameters are called so
    built = model(scope["call"])
    with embgrad.capture(built) as tap:
        logits = built(**others, **{name: IDS})
        pull_back([(logits, slope(logits))], [built["E"]])
    np.testing.assert_array_equal(tap.steps[0].ids, IDS)


def test_ids_of_one_text_without_an_axis_of_examples() -> None:
    def flat(model: Any, input_ids: np.ndarray) -> Tensor:
        return lookup(model["E"], input_ids).tanh().sum(0).reshape(1, DIM) @ model["H"]

    built = model(flat)
    with embgrad.capture(built) as tap:
        step(built, IDS[0])
    assert tap.steps[0].shape == (1, 3, DIM)


@pytest.mark.parametrize(("shape", "axis"), [((3, 2, 4), 1), ((2, 3, 4), 0), ((2, 4), None), ((5, 5, 4), None)])
def test_earlier_passes_show_the_axis_of_the_examples(shape: tuple[int, ...], axis: int | None) -> None:
    axes, square = PassAxes("pool", "Mind it."), embgrad.TokenBatch(IDS[:, :2])
    assert axes._example_axis(shape, embgrad.TokenBatch(IDS)) is None
    assert axes._example_axis((2, 3, 4), square) is None
    if axis is None:
        with pytest.warns(embgrad.EmbgradWarning, match="by example and by position, and no earlier batch showed"):
            assert axes._example_axis((2, 2, 4), square) == 0
    else:
        assert axes._example_axis((2, 2, 4), square) == axis
    assert axes._example_axis((1, 1, 4), embgrad.TokenBatch([[1]])) is None
