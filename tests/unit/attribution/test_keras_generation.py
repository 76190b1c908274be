"""Attributions of tokens that a model with keras-hub's way to generate has made, on the reference backend."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad import attribute_tokens
from embgrad.testing.reference import ReferenceModel
from tests.unit.attribution.language_models import _causal, _encoder_decoder, weights
from tests.unit.attribution.test_attribute_tokens import BATCH, IDS, MASK, alone


class Layer:
    """The base class of Keras's models."""


Layer.__module__ = "keras.layers"


class Variable:
    def __init__(self) -> None:
        self.value = np.array([1, 2])

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        return self.value

    def assign(self, value: np.ndarray) -> None:
        self.value = value


class Sampler:
    """A sampler that takes the likeliest of all ids but one."""

    without = 5

    def __init__(self) -> None:
        self.variables = [Variable()]

    def next(self, logits: np.ndarray) -> np.ndarray:
        self.variables[0].assign(self.variables[0].value + 1)
        return np.where(np.arange(logits.shape[-1]) == self.without, -np.inf, logits).argmax(-1)


Sampler.__module__ = "hub.samplers"


class GreedySampler(Sampler):
    without = -1


class Hub(ReferenceModel, Layer):
    """A language model with keras-hub's methods."""

    def __init__(self, decoder: bool = False, preprocessor: Any = None) -> None:
        super().__init__(_encoder_decoder if decoder else _causal, weights())
        self.sampler = Sampler()
        self.generate_function: Any = None
        self.preprocessor = preprocessor
        self.decoder = decoder
        self.stops: Any = ()
        if decoder:
            self.call = self._decoded  # type: ignore[method-assign,assignment]

    def call(self, token_ids: Any, padding_mask: Any = None) -> Any: ...

    def _decoded(self, encoder_token_ids: Any, decoder_token_ids: Any) -> Any: ...

    def generate(self) -> Any: ...

    def make_generate_function(self) -> Any:
        self.generate_function = self.generate_function or self.generate_step
        return self.generate_function

    def generate_step(self, inputs: dict[str, np.ndarray], stop_token_ids: Any = None) -> dict[str, np.ndarray]:
        self.stops = stop_token_ids
        *_, name, of_mask = inputs
        ids, given = inputs[name].copy(), inputs[of_mask]
        ended = np.zeros(len(ids), bool)
        mask = np.ones_like(given)
        for position in range(1, ids.shape[1]):
            before, real = ids[:, :position], np.ones((len(ids), position), int)
            first = list(inputs.values())[:2] if self.decoder else []
            logits = self(*first, before, real).value[:, -1]
            new = np.where(given[:, position], ids[:, position], self.sampler.next(logits))
            ids[:, position] = new
            mask[:, position] = ~ended | given[:, position]
            ended |= ~given[:, position] & np.isin(new, stop_token_ids or ())
        return {name: ids, of_mask: mask}


@pytest.fixture(autouse=True)
def keras(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = SimpleNamespace(convert_to_tensor=np.asarray, convert_to_numpy=np.asarray)
    monkeypatch.setitem(sys.modules, "keras", SimpleNamespace(ops=ops, __version__="3"))  # type: ignore[arg-type]
    samplers = SimpleNamespace(GreedySampler=GreedySampler)
    monkeypatch.setitem(sys.modules, "hub", SimpleNamespace(samplers=samplers))  # type: ignore[arg-type]


def continued(model: Hub, prompt: np.ndarray, count: int, without: int = -1) -> np.ndarray:
    ids = prompt[None]
    for _ in range(count):
        logits = np.where(np.arange(12) == without, -np.inf, model(ids).value[:, -1])
        ids = np.append(ids, logits.argmax(-1)[:, None], 1)
    return ids


@pytest.mark.parametrize("side", ["as given", "right"])
def test_a_number_of_new_tokens_by_greedy_search(side: str) -> None:
    model = Hub()
    function, sampler = model.make_generate_function(), model.sampler
    batch = BATCH
    if side == "right":
        rows = [alone(example)[0] for example in range(3)]
        ids = np.array([np.append(row, [11] * (5 - len(row))) for row in rows])
        batch = embgrad.TokenBatch(ids, np.arange(5) < np.array([len(row) for row in rows])[:, None])
    result = attribute_tokens(model, batch, generate=3)
    np.testing.assert_array_equal(result.outputs, [[5, 6, 7]] * 3)
    for example in range(3):
        ids = continued(model, alone(example)[0], 3)
        np.testing.assert_array_equal(result.ids[example][result.real[example]], ids[0])
        single = attribute_tokens(model, ids, targets=slice(-3, None))
        np.testing.assert_allclose(result.scores[example][:, result.real[example]], single.scores[0], atol=1e-13)
        np.testing.assert_allclose(result.objective[example], single.objective[0], rtol=1e-12)
    assert model.sampler is sampler
    assert model.generate_function == function
    np.testing.assert_array_equal(sampler.variables[0].value, [1, 2])


def test_a_dict_of_options_goes_with_the_models_own_sampler() -> None:
    model = Hub()
    result = attribute_tokens(model, BATCH, generate={"max_length": 6, "stop_token_ids": None})
    lengths = [len(alone(example)[0]) for example in range(3)]
    for example, length in enumerate(lengths):
        ids = continued(model, alone(example)[0], 6 - length, without=5)
        np.testing.assert_array_equal(result.ids[example][result.real[example]], ids[0])
        assert (result.outputs[example] >= 0).sum() == 6 - length
    assert model.generate_function is None
    assert model.stops is None
    np.testing.assert_array_equal(model.sampler.variables[0].value, [1, 2])


@pytest.mark.parametrize("options", [{"max_length": 9, "stop_token_ids": "first"}, {"max_length": 9}])
def test_a_text_ends_at_a_stop_token(options: dict[str, Any]) -> None:
    row = alone(0)[0]
    ids = continued(Hub(), row, 9 - len(row), without=5)[0]
    stop = int(ids[len(row) + 1])
    end = len(row) + 1 + int(ids[len(row)] != stop)
    model = Hub(preprocessor=SimpleNamespace(sequence_length=9, tokenizer=SimpleNamespace(end_token_id=stop)))
    if "stop_token_ids" in options:
        options = {**options, "stop_token_ids": [stop]}
    result = attribute_tokens(model, row[None], generate=options)
    assert model.stops == (stop,)
    np.testing.assert_array_equal(result.ids[0][result.real[0]], ids[:end])
    assert (result.outputs >= 0).sum() == end - len(row)


def test_types_go_on() -> None:
    batch = embgrad.TokenBatch(IDS[:1], None, np.array([[0, 0, 1, 1, 1]]))
    with pytest.warns(embgrad.EmbgradWarning, match="cannot take the types"):
        result = attribute_tokens(Hub(), batch, generate=2)
    np.testing.assert_array_equal(result.types, [[0, 0, 1, 1, 1, 1, 1]])


def test_an_encoder_decoder_goes_on_from_the_ids_with_which_its_decoder_starts() -> None:
    model = Hub(decoder=True)
    start = np.array([[1, 2], [1, 0], [1, 3]])
    batch = embgrad.TokenBatch(
        IDS, MASK, extras={"decoder_token_ids": start, "decoder_padding_mask": np.array([[1, 1], [1, 0], [1, 1]])}
    )
    call = lambda model, inputs: model(inputs["input_ids"], inputs["attention_mask"], *list(inputs.values())[2:])  # noqa: E731
    result = attribute_tokens(model, batch, generate=2, call=call)
    assert result.decoder_ids is not None
    assert result.decoder_mask is not None
    np.testing.assert_array_equal(result.outputs, [[2, 3]] * 3)
    np.testing.assert_array_equal(result.decoder_mask, [[1, 1, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1]])
    for example, length in enumerate([2, 1, 2]):
        ids = start[example, :length][None]
        for _ in range(2):
            logits = model(IDS[example : example + 1], MASK[example : example + 1], ids, np.ones(ids.shape))
            ids = np.append(ids, logits.value[:, -1].argmax(-1)[:, None], 1)
        np.testing.assert_array_equal(result.decoder_ids[example][result.decoder_mask[example] == 1], ids[0])


def test_a_preprocessor_says_with_which_ids_a_decoder_starts() -> None:
    def preprocess(texts: Any) -> dict[str, np.ndarray]:
        assert texts == {"encoder_text": [""], "decoder_text": [""]}
        return {"decoder_token_ids": np.array([[4, 0]]), "decoder_padding_mask": np.array([[True, False]])}

    model = Hub(decoder=True, preprocessor=SimpleNamespace(generate_preprocess=preprocess))
    call = lambda model, inputs: model(inputs["input_ids"], inputs["attention_mask"], *list(inputs.values())[2:])  # noqa: E731
    result = attribute_tokens(model, embgrad.TokenBatch(IDS, MASK), generate=1, call=call)
    assert result.decoder_ids is not None
    np.testing.assert_array_equal(result.decoder_ids[:, 0], [4, 4, 4])


def test_texts_go_through_the_models_own_preprocessor() -> None:
    def preprocess(texts: Any) -> dict[str, np.ndarray]:
        assert texts == ["a text", "b"]
        mask = np.array([[1, 1, 1, 0, 0], [1, 1, 0, 0, 0]], bool)
        return {"token_ids": np.array([[2, 5, 7, 0, 0], [2, 9, 0, 0, 0]]), "padding_mask": mask}

    def start(texts: Any) -> dict[str, np.ndarray]:
        decoder = {"decoder_token_ids": np.full((2, 4), 3), "decoder_padding_mask": np.eye(4, dtype=int)[[0, 0]]}
        of_encoder = {f"encoder_{name}": value for name, value in preprocess(texts).items()}
        return {**of_encoder, **decoder}

    model = Hub(preprocessor=SimpleNamespace(generate_preprocess=preprocess))
    result = attribute_tokens(model, ["a text", "b"], generate=2)
    np.testing.assert_array_equal(result.mask, [[1, 1, 1, 1, 1], [0, 1, 1, 1, 1]])
    np.testing.assert_array_equal(result.ids[0], continued(model, np.array([2, 5, 7]), 2)[0])
    np.testing.assert_array_equal(result.ids[1][1:], continued(model, np.array([2, 9]), 2)[0])
    with pytest.raises(embgrad.errors.BatchError, match="the batch is raw text"):
        attribute_tokens(model, [("a text", "b")], generate=2)
    decoder = Hub(decoder=True, preprocessor=SimpleNamespace(generate_preprocess=start))
    call = lambda model, inputs: model(*inputs.values())  # noqa: E731
    result = attribute_tokens(decoder, ["a text", "b"], generate=1, call=call)
    np.testing.assert_array_equal(result.ids, [[2, 5, 7], [2, 9, 0]])
    assert result.decoder_ids is not None
    np.testing.assert_array_equal(result.decoder_ids[:, 0], [3, 3])
    assert result.decoder_ids.shape == (2, 2)


def test_what_cannot_be_generated_is_refused() -> None:
    with pytest.raises(
        embgrad.EmbgradError, match="the option 'max_new_tokens': expected 'max_length', 'stop_token_ids'"
    ):
        attribute_tokens(Hub(), IDS, generate={"max_new_tokens": 3})
    with pytest.raises(embgrad.EmbgradError, match="generate leaves 5 tokens in all, and the shortest prompt has 5"):
        attribute_tokens(Hub(), IDS, generate={"stop_token_ids": None})
    for stops in ("<end>", [[1]], 0.5):
        with pytest.raises(embgrad.EmbgradError, match=r"stop_token_ids is .*expected ids, such as \(2, 3\)"):
            attribute_tokens(Hub(), IDS, generate={"max_length": 7, "stop_token_ids": stops})
    with pytest.raises(
        embgrad.errors.UnsupportedError, match="has no preprocessor, so that the id with which its decoder starts"
    ):
        attribute_tokens(Hub(decoder=True), embgrad.TokenBatch(IDS, MASK), generate=3)
    with pytest.raises(embgrad.errors.UnsupportedError, match="'images' beside the prompts"):
        attribute_tokens(Hub(), embgrad.TokenBatch(IDS, extras={"images": np.ones(3)}), generate=3)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (
            {"token_ids": np.zeros((3, 4)), "padding_mask": np.ones((3, 4))},
            r"generated ids of shape \(3, 4\) for prompts",
        ),
        ({"token_ids": np.full((3, 8), 0.5), "padding_mask": np.ones((3, 8))}, "generated no ids for prompts"),
        ({}, "generation of Hub raised KeyError for 'token_ids', 'padding_mask'"),
    ],
)
def test_a_function_that_returns_other_ids_is_refused(returned: dict[str, np.ndarray], message: str) -> None:
    class Other(Hub):
        def generate_step(self, inputs: dict[str, np.ndarray], stop_token_ids: Any = None) -> dict[str, np.ndarray]:
            return {name: returned[name] for name in inputs}

    model = type("Hub", (Other,), {})()
    sampler = model.sampler
    with pytest.raises(embgrad.errors.UnsupportedError, match=message):
        attribute_tokens(model, IDS, generate=3)
    assert model.sampler is sampler
    assert model.generate_function is None
