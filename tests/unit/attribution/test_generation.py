"""Attributions of tokens that the model's own method `generate` has made, on the reference backend."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad import EmbgradError, attribute_tokens
from tests.unit.attribution.language_models import (
    Generating,
    causal,
)
from tests.unit.attribution.test_attribute_tokens import BATCH, IDS, MASK, alone


@pytest.mark.parametrize("generate", [3, {"max_new_tokens": 3, "top_k": 5}])
def test_prompts_of_different_lengths_are_continued(generate: Any) -> None:
    model = Generating()
    result = attribute_tokens(model, BATCH, generate=generate)
    np.testing.assert_array_equal(result.outputs, [[5, 6, 7]] * 3)
    assert result.ids.shape == (3, 8)
    for example in range(3):
        prompt = alone(example)[0]
        ids = prompt[None]
        for _ in range(3):
            ids = np.append(ids, causal()(ids).value[:, -1].argmax(-1)[:, None], 1)
        real = result.real[example]
        np.testing.assert_array_equal(result.ids[example][real], ids[0])
        single = attribute_tokens(causal(), ids, targets=slice(len(prompt), None))
        np.testing.assert_allclose(result.scores[example][:, real], single.scores[0], atol=1e-13)
        np.testing.assert_allclose(result.objective[example], single.objective[0], rtol=1e-12)


def _recorded(model: Generating) -> list[dict[str, Any]]:
    asked: list[dict[str, Any]] = []
    method = model.generate

    def generate(*args: Any, **kwargs: Any) -> Any:
        asked.append(kwargs)
        return method(*args, **kwargs)

    model.generate = generate  # type: ignore[method-assign]
    return asked


def test_a_number_asks_for_a_greedy_search_and_a_dict_for_its_arguments() -> None:
    model = Generating()
    asked = _recorded(model)
    for batch in (IDS[:1], {"input_ids": IDS[:1]}):
        attribute_tokens(model, batch, generate=2)
        attribute_tokens(model, batch, generate={"max_new_tokens": 4, "temperature": 0.5})
    of_batch = ("input_ids", "attention_mask")
    arguments = [{name: value for name, value in call.items() if name not in of_batch} for call in asked]
    assert all(
        (call["attention_mask"] == 1).all() for call in asked
    )  # else a method may guess it by the id of the padding
    assert (
        arguments
        == [
            {"max_new_tokens": 2, "do_sample": False},
            {"max_new_tokens": 4, "temperature": 0.5},
        ]
        * 2
    )


@pytest.mark.parametrize("source", ["config", "generation_config", "arguments", "arguments' config", "tokenizer"])
def test_tokens_after_the_end_of_a_text_are_padding(source: str) -> None:
    plain = attribute_tokens(Generating(), BATCH, generate=4)
    ends = [int(plain.output_ids[0, 1]), 99]
    model, options, tokenizer = Generating(), {"max_new_tokens": 4}, None
    if source == "config":
        model.config.eos_token_id = ends
    elif source == "generation_config":
        model.generation_config = type(model.config)()  # type: ignore[attr-defined]
        model.generation_config.eos_token_id = ends  # type: ignore[attr-defined]
    elif source == "arguments":
        options["eos_token_id"] = ends  # type: ignore[assignment]
    elif source == "arguments' config":
        config = type(model.config)()
        config.eos_token_id = ends
        options["generation_config"] = config  # type: ignore[assignment]
    else:
        tokenizer = _Named(ends[0])
    result = attribute_tokens(model, BATCH, generate=options, tokenizer=tokenizer)
    for example in range(3):
        row = plain.output_ids[example]
        count = int(np.isin(row, ends).argmax()) + 1 if np.isin(row, ends).any() else 4
        np.testing.assert_array_equal(result.output_ids[example][: result.shape[1]][:count], row[:count])
        assert (result.outputs[example, count:] == -1).all()
        assert result.real[example, 5:].sum() == count
        np.testing.assert_allclose(result.scores[example, :count], plain.scores[example, :count, : result.shape[2]])


class _Named:
    """A tokenizer that names every id, and knows the id at the end of a text."""

    all_special_ids = ()

    def __init__(self, eos: int) -> None:
        self.eos_token_id = eos

    def convert_ids_to_tokens(self, number: int) -> str:
        return f"t{number}"


def test_targets_may_be_chosen_among_prompt_and_continuation() -> None:
    result = attribute_tokens(Generating(), BATCH, generate=2, targets=[-1, -3])
    np.testing.assert_array_equal(result.outputs, [[6, 4]] * 3)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda ids: np.repeat(ids, 2, 0), "generate() returned ids of shape (6, 5) for 3 prompts of 5 positions"),
        (lambda ids: ids, "generate() returned ids of shape (3, 5) for 3 prompts of 5 positions"),
        (lambda ids: ids[:, :, None], "generate() returned ids of shape (3, 5, 1)"),
        (lambda ids: ids + 0.5, "generate() returned no ids for 3 prompts"),
        (lambda ids: ["a great film"] * 3, "generate() returned no ids for 3 prompts"),
        (lambda ids: [[1], [2, 3], [4]], "generate() returned no ids for 3 prompts"),
        (
            lambda ids: np.concatenate([ids[:, ::-1], ids], 1),
            "generate() returned sequences that do not begin with the prompts' ids",
        ),
    ],
)
def test_what_generate_may_not_return_is_refused(returned: Any, message: str) -> None:
    model = Generating()
    model.generate = lambda input_ids, attention_mask, **options: returned(input_ids)  # type: ignore[method-assign]
    with pytest.raises(embgrad.errors.UnsupportedError, match=re.escape(message)):
        attribute_tokens(model, BATCH, generate=2)


@pytest.mark.parametrize("name", ["pixel_values", "position_ids"])
def test_prompts_with_further_inputs_are_refused(name: str) -> None:
    batch = {"input_ids": IDS, "attention_mask": MASK, name: np.ones(IDS.shape, int)}
    message = (
        f"the batch has '{name}' beside the prompts, and generate=... continues these alone: leave it out, or give all"
    )
    with pytest.raises(embgrad.errors.UnsupportedError, match=re.escape(message)):
        attribute_tokens(Generating(), batch, generate=2)


def test_labels_and_types_that_the_model_does_not_take_are_not_needed_to_continue_prompts() -> None:
    others = {"labels": IDS, "token_type_ids": np.zeros_like(IDS)}
    batch = {"input_ids": IDS, "attention_mask": MASK}
    result = attribute_tokens(Generating(), {**batch, **others}, generate=2)
    np.testing.assert_array_equal(result.scores, attribute_tokens(Generating(), batch, generate=2).scores)
    assert result.types is None


@pytest.mark.parametrize("name", ["input_ids", "attention_mask", 3])
def test_arguments_of_generate_do_not_replace_the_prompts(name: Any) -> None:
    with pytest.raises(EmbgradError, match=f"generate has the argument {name!r}: expected names of other arguments"):
        attribute_tokens(Generating(), BATCH, generate={name: 1})


def test_arguments_that_the_method_refuses_are_named() -> None:
    model = Generating()

    def generate(input_ids: Any, attention_mask: Any = None, max_new_tokens: int = 1) -> Any:
        raise AssertionError

    model.generate = generate  # type: ignore[method-assign, assignment]
    with pytest.raises(EmbgradError, match=r"method generate\(\) refuses {'bogus': 1}: .*unexpected keyword.*Correct"):
        attribute_tokens(model, BATCH, generate={"bogus": 1})


def test_no_id_ends_a_text_where_the_arguments_say_so() -> None:
    model = Generating()
    plain = attribute_tokens(model, BATCH, generate={"max_new_tokens": 4, "eos_token_id": None})
    model.config.eos_token_id = int(plain.output_ids[0, 1])
    # The model of these tests stops at its configuration's id all the same; that its tokens count is what matters here.
    result = attribute_tokens(model, BATCH, generate={"max_new_tokens": 4, "eos_token_id": None})
    assert (result.outputs >= 0).all()


def test_a_model_of_keras_hub_generates_by_itself() -> None:
    model = Generating()
    model.make_generate_function = lambda: None  # type: ignore[attr-defined]
    message = "is a model of keras-hub, whose generate() takes prompts with room for the new tokens: call it yourself"
    with pytest.raises(embgrad.errors.UnsupportedError, match=re.escape(message)):
        attribute_tokens(model, BATCH, generate=2)
