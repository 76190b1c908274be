"""Keras 3 models on Keras's PyTorch backend. `test_keras.py` runs these in a process of their own, where KERAS_BACKEND is set."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
import pytest
import torch
from keras import layers

import embgrad
from tests.frameworks.keras_state import keras_model_of_one_number
from tests.support.company import expect_state_of_one_number

assert keras.backend.backend() == "torch"

IDS = np.array([[3, 1, 4, 15], [9, 2, 6, 0]])
MASK = np.array([[1, 1, 1, 1], [1, 1, 1, 0]])
BATCH = {"input_ids": IDS, "attention_mask": MASK}
LABELS = [0, 2]
THREE = np.array([[5, 6, 2], [7, 8, 1], [3, 3, 4]])


def ends(hidden: Any, mask: Any) -> Any:
    weights = keras.ops.cast(mask, "float32")[..., None]
    return keras.ops.sum(keras.ops.tanh(hidden) * weights, 1) / keras.ops.sum(weights, 1)


def functional(structure: Any, ids: str = "input_ids", mask: str = "attention_mask") -> Any:
    """A model of declared inputs in a structure: a dict or a list."""
    inputs = [keras.Input((None,), dtype="int32", name=name) for name in (ids, mask)]
    hidden = layers.Embedding(20, 6, name="words")(inputs[0])
    return keras.Model(structure(*inputs), layers.Dense(3, name="head")(ends(hidden, inputs[1])))


class Subclassed(keras.Model):
    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.words, self.drop, self.head = layers.Embedding(20, 6), layers.Dropout(rate), layers.Dense(3)

    def call(self, input_ids: Any, attention_mask: Any = None, training: bool = False) -> Any:
        return self.head(self.drop(ends(self.words(input_ids), attention_mask), training=training))


class OfOneDict(Subclassed):
    def call(self, inputs: Any, training: bool = False) -> Any:
        return super().call(inputs["input_ids"], inputs["attention_mask"], training=training)


class OfOneAnnotatedDict(OfOneDict):
    def call(self, inputs: dict[str, Any], training: bool = False) -> Any:
        return super().call(inputs, training=training)


def sequential() -> Any:
    return keras.Sequential([layers.Embedding(20, 6, mask_zero=True), layers.GlobalAveragePooling1D(), layers.Dense(3)])


def native(batch: Any) -> Any:
    return {name: torch.tensor(value) for name, value in batch.items()}


def table_of(model: Any) -> Any:
    return next(variable for variable in model.trainable_variables if variable.shape == (20, 6)).value


def own(model: Any, call: Any) -> np.ndarray:
    """PyTorch's own gradient of the table, at the rows of the ids, which all differ."""
    logits = call(model)
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(LABELS), reduction="sum")
    return torch.autograd.grad(loss, table_of(model))[0].numpy()[IDS]


def built(model: Any, call: Any) -> Any:
    call(model)
    return model


OF_DICT = lambda model: model(native(BATCH))  # noqa: E731
MODELS = {
    "functional of a dict": (
        lambda: functional(lambda ids, mask: {"input_ids": ids, "attention_mask": mask}),
        BATCH,
        OF_DICT,
    ),
    "functional of a list": (
        lambda: functional(lambda ids, mask: [mask, ids]),
        BATCH,
        lambda model: model([*native(BATCH).values()][::-1]),
    ),
    "functional of keras-hub": (
        lambda: functional(lambda ids, mask: {"token_ids": ids, "padding_mask": mask}, "token_ids", "padding_mask"),
        {"token_ids": IDS, "padding_mask": MASK},
        lambda model: model({"token_ids": torch.tensor(IDS), "padding_mask": torch.tensor(MASK)}),
    ),
    "sequential": (sequential, IDS, lambda model: model(torch.tensor(IDS))),
    "subclassed": (Subclassed, BATCH, lambda model: model(**native(BATCH))),
    "subclassed of one dict": (OfOneDict, BATCH, OF_DICT),
    "subclassed of one annotated dict": (OfOneAnnotatedDict, BATCH, OF_DICT),
}


@pytest.mark.parametrize("kind", MODELS)
def test_the_word_lookup(kind: str) -> None:
    build, batch, call = MODELS[kind]
    model = built(build(), call)
    expected = own(model, call)
    result = embgrad.gradients(model, batch, embgrad.CrossEntropy(LABELS), check=True)
    np.testing.assert_allclose(result.values, expected, rtol=1e-5, atol=1e-8)
    assert result.provenance["backend"] == "torch"
    assert result.provenance["unused"] == []
    pieces = embgrad.gradients(model, batch, embgrad.CrossEntropy(LABELS), batch_size=1)
    np.testing.assert_allclose(pieces.values, expected, rtol=1e-5, atol=1e-8)
    kept = embgrad.gradients(model, batch, embgrad.CrossEntropy(LABELS), add={"word": np.zeros(6)})
    np.testing.assert_array_equal(kept.values, result.values)


def test_the_private_names_of_keras_exist() -> None:
    layer = layers.Embedding(3, 2, mask_zero=True)
    rows = layer(torch.tensor([[1, 0]]))
    holders = (layer, layer.embeddings, rows)
    assert all(
        any(hasattr(holder, name) for holder in holders) for name in ("_get_call_context", "_keras_mask", "_value")
    )


def test_training_drops_and_evaluation_does_not() -> None:
    model = built(Subclassed(rate=0.5), MODELS["subclassed"][2])
    plain = [embgrad.gradients(model, BATCH, embgrad.Logit(1)).objective for _ in range(2)]
    np.testing.assert_array_equal(*plain)
    drawn = [embgrad.gradients(model, BATCH, embgrad.Logit(1), training=True).objective for _ in range(8)]
    assert len({tuple(one) for one in drawn}) > 1
    np.testing.assert_array_equal(embgrad.gradients(model, BATCH, embgrad.Logit(1)).objective, plain[0])


def test_averages_of_batch_norm_are_restored() -> None:
    norm = layers.BatchNormalization(momentum=0.5)
    model = keras.Sequential([layers.Embedding(20, 6), layers.GlobalAveragePooling1D(), norm, layers.Dense(3)])
    model(torch.tensor(IDS))
    before = {weight.path: np.array(weight.value.detach()) for weight in model.weights}
    trained = embgrad.gradients(model, IDS, embgrad.CrossEntropy(LABELS), training=True)
    plain = embgrad.gradients(model, IDS, embgrad.CrossEntropy(LABELS))
    assert not np.allclose(trained.objective, plain.objective)
    for weight in model.weights:
        np.testing.assert_array_equal(np.array(weight.value.detach()), before[weight.path])
        assert weight.value.grad is None


@pytest.mark.parametrize("frozen", [False, True])
def test_a_state_that_a_layer_writes_for_one_number_of_examples(frozen: bool) -> None:
    expect_state_of_one_number(lambda count: keras_model_of_one_number(count, frozen=frozen), THREE)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_hidden_state_is_restored(frozen: bool) -> None:
    """Keras writes it in place, so that a pass with a graph has no gradient in Keras either."""
    given = keras.Input(batch_shape=(3, 3), dtype="int32")
    model = keras.Model(given, layers.LSTM(4, stateful=True)(layers.Embedding(9, 4)(given)))
    model(THREE[::-1].copy())
    model.trainable = not frozen
    states = [variable.value for variable in model.layers[-1].states]
    before = [state.detach().clone() for state in states]
    first, second = (embgrad.evaluate(model, THREE, embgrad.Logit(1)) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert all(map(torch.equal, states, before))
    np.testing.assert_allclose(first, model(THREE).detach().numpy()[:, 1], rtol=1e-5)


def test_parameters_and_the_table() -> None:
    build, batch, call = MODELS["functional of a dict"]
    model = build()
    result = embgrad.tables.parameter_gradients(model, batch, embgrad.CrossEntropy(LABELS))
    loss = torch.nn.functional.cross_entropy(call(model), torch.tensor(LABELS), reduction="sum")
    table, *_, bias = (variable.value for variable in model.trainable_variables)
    expected = torch.autograd.grad(loss, [table, bias])
    shapes = {one.shape: one for one in result.values()}
    np.testing.assert_allclose(shapes[20, 6], expected[0].numpy(), rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(shapes[3,], expected[1].numpy(), rtol=1e-5, atol=1e-8)
    ledger = embgrad.tables.table_gradients(model, batch, embgrad.CrossEntropy(LABELS))
    np.testing.assert_allclose(ledger.total, expected[0].numpy(), rtol=1e-5, atol=1e-8)


def test_a_model_that_was_never_called_is_refused_untouched() -> None:
    bare = torch.nn.Sequential(layers.Embedding(20, 6))
    for model, batch in ((Subclassed(), BATCH), (sequential(), {"input_ids": IDS}), (bare, {"input_ids": IDS})):
        with pytest.raises(
            embgrad.errors.UnsupportedError, match=r"creates its weights in its first call.* Call the model once before"
        ):
            embgrad.gradients(model, batch, embgrad.Sum())
        assert len(model(*native(batch).values())) == len(IDS)
        assert embgrad.gradients(model, batch, embgrad.Sum()).values.shape == (2, 4, 6)


def test_the_row_that_a_layer_masks_is_padding() -> None:
    model = sequential()
    model(torch.tensor(IDS))
    (point,) = [point for point in embgrad.points(model, IDS) if point.lookup is not None]
    assert point.lookup is not None
    assert point.lookup.padding == 0
    result = embgrad.gradients(model, IDS, embgrad.CrossEntropy(LABELS))
    assert not result.values[IDS == 0].any()


def test_masks_stay_at_tensors_that_points_replace() -> None:
    model = keras.Sequential(
        [layers.Embedding(20, 6, mask_zero=True), layers.Dropout(0.5, name="drop"), layers.LSTM(3)]
    )
    expected = own(model, lambda model: model(torch.tensor(IDS)))
    for at in ("drop", "lstm:input"):
        result = embgrad.gradients(
            model, IDS, embgrad.CrossEntropy(LABELS), at=at.replace("lstm", model.layers[-1].name)
        )
        np.testing.assert_allclose(result.values, expected, rtol=1e-5, atol=1e-8)


class AlwaysNoisy(Subclassed):
    """A model with a layer that draws from Keras's own generator, whatever the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = layers.GaussianNoise(0.5)

    def call(self, input_ids: Any, attention_mask: Any = None, training: bool = False) -> Any:
        return super().call(input_ids, attention_mask, training=True)


def test_random_numbers_of_layers_move_only_in_training() -> None:
    model = built(AlwaysNoisy(), MODELS["subclassed"][2])
    seed = model.drop.seed_generator.state.value
    before = seed.tolist()
    first, second = (embgrad.gradients(model, BATCH, embgrad.Logit(1)) for _ in range(2))
    np.testing.assert_array_equal(first.objective, second.objective)
    assert seed.tolist() == before
    third = embgrad.gradients(model, BATCH, embgrad.Logit(1), training=True)
    assert seed.tolist() != before
    np.testing.assert_array_equal(third.objective, first.objective)  # drawn from the same state
    assert (embgrad.gradients(model, BATCH, embgrad.Logit(1)).objective != first.objective).all()


def parameters_of_keras(model: Any) -> str:
    return str(model.words.embeddings.path)


def test_modules_of_pytorch_in_keras_and_keras_layers_in_pytorch() -> None:
    inner = torch.nn.Sequential(torch.nn.Embedding(20, 6), torch.nn.Linear(6, 3))
    wrapped = keras.Sequential([keras.layers.TorchModuleWrapper(inner, name="inner"), layers.GlobalAveragePooling1D()])

    class Mixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = layers.Embedding(20, 6), torch.nn.Linear(6, 3)

        def forward(self, input_ids: Any) -> Any:
            return self.head(self.words(input_ids).mean(1))

    for model, path in ((wrapped, "inner.module.0#0"), (Mixed(), "words#0")):
        logits = model(torch.tensor(IDS))
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(LABELS), reduction="sum")
        table = next(one for one in model.parameters() if one.shape == (20, 6))
        result = embgrad.gradients(model, IDS, embgrad.CrossEntropy(LABELS))
        np.testing.assert_allclose(
            result.values, torch.autograd.grad(loss, table)[0].numpy()[IDS], rtol=1e-5, atol=1e-8
        )
        assert result.provenance["path"] == path
        parameters = embgrad.tables.parameter_gradients(model, IDS, embgrad.CrossEntropy(LABELS))
        assert len(parameters) == 3
    assert [name.partition(".")[0] for name in parameters] == [parameters_of_keras(model), "head", "head"]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_mask_that_keras_makes_itself_is_no_warning(streamed: bool) -> None:
    model = keras.Sequential([layers.Embedding(20, 3, mask_zero=True), layers.LSTM(4), layers.Dense(2)])
    model(torch.tensor(IDS))
    batch = embgrad.TokenBatch(IDS, (IDS != 0).astype(int))
    with warnings.catch_warnings():
        warnings.simplefilter("error", embgrad.EmbgradWarning)
        if streamed:
            list(embgrad.stream(model, [batch], embgrad.Logit(0), keep="saliency"))
        else:
            found = embgrad.gradients(model, batch, embgrad.Logit(0))
            assert (found.pad_leak, found.provenance["masked_id"], found.provenance["unused"]) == (0, 0, [])
    other = embgrad.TokenBatch(IDS, [[1, 1, 1, 1], [1, 1, 0, 0]])
    with pytest.warns(
        embgrad.EmbgradWarning, match=r"makes its own, 0 where the id is 0, which differs from it at 1 pos"
    ):
        embgrad.gradients(model, other, embgrad.Logit(0))


def test_a_padding_index_of_pytorch_is_no_mask() -> None:
    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = torch.nn.Embedding(20, 3, padding_idx=0), torch.nn.Linear(3, 2)

        def forward(self, input_ids: Any) -> Any:
            return self.head(self.words(input_ids).mean(1))

    with pytest.warns(embgrad.EmbgradWarning, match="so that it reads padding as text"):
        embgrad.gradients(Plain(), embgrad.TokenBatch(IDS, (IDS != 0).astype(int)), embgrad.Logit(0))
