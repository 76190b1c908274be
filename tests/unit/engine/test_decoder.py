"""Encoder-decoders under other names than Hugging Face's: whose positions an output has, and where that is not known."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace as Of
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.engine.encoder_decoders import takes_decoder
from embgrad.testing.reference import ReferenceModel
from embgrad.testing.tensors import Tensor, lookup

IDS = np.array([[4, 5, 6], [7, 8, 0]])
MASK = np.array([[1, 1, 1], [1, 1, 0]])
OUT = np.array([[2, 3, 9], [5, 1, 6]])
OUT_MASK = np.array([[1, 1, 0], [1, 1, 1]])
E = np.random.default_rng(0).normal(size=(10, 2))
D = np.random.default_rng(1).normal(size=(10, 2))
KERAS_HUB = ("encoder_token_ids", "encoder_padding_mask", "decoder_token_ids", "decoder_padding_mask")


def states(model: Any, ids: np.ndarray, out: np.ndarray, table: str = "E") -> Tensor:
    """Return the decoder's states: its embeddings, plus the mean of the encoder's."""
    mean = lookup(model["E"], ids).sum(1) * Tensor(np.full((1, 1), 1 / ids.shape[1]))
    return lookup(model[table], out) + mean.reshape(len(ids), 1, 2)


def by_hand(ids: np.ndarray, out: np.ndarray, real: np.ndarray, table: np.ndarray = E) -> np.ndarray:
    return np.asarray(((table[out] + E[ids].mean(1)[:, None]) * real[..., None]).sum((1, 2)))


def model(table: str = "E") -> ReferenceModel:

    def forward(
        model: Any,
        encoder_token_ids: Any,
        encoder_padding_mask: Any = None,
        decoder_token_ids: Any = None,
        decoder_padding_mask: Any = None,
    ) -> Tensor:
        return states(model, encoder_token_ids, decoder_token_ids, table)

    return ReferenceModel(forward, {"E": E, "D": D})


def calls(name: str, table: str = "E") -> Callable[[Any, Any], Tensor]:
    return lambda model, inputs: states(model, inputs["input_ids"], inputs[name], table)


@pytest.mark.parametrize("width", [3, 2])
def test_a_dict_of_keras_hubs_names_weights_the_decoders_output_with_the_decoders_mask(width: int) -> None:
    out, real = OUT[:, :width], OUT_MASK[:, :width]
    batch = dict(zip(KERAS_HUB, (IDS, MASK, out, real), strict=True))
    g = embgrad.gradients(model(), batch, embgrad.Sum())
    np.testing.assert_allclose(g.objective, by_hand(IDS, out, real))
    # dL/d e[i, p] = the number of the decoder's real positions / the number of the encoder's positions
    np.testing.assert_allclose(g.values, np.repeat(real.sum(1)[:, None, None] / 3, 3, 1).repeat(2, 2))
    assert g.provenance["convention"] == "keras_hub_seq2seq"
    np.testing.assert_array_equal(g.mask, MASK)


@pytest.mark.parametrize(
    ("ids", "mask"), [(KERAS_HUB[2], KERAS_HUB[3]), ("decoder_input_ids", "decoder_attention_mask")]
)
@pytest.mark.parametrize("by_call", [False, True])
def test_decoder_ids_are_known_under_the_names_of_each_convention(ids: str, mask: str, by_call: bool) -> None:
    batch = embgrad.TokenBatch(IDS, MASK, extras={ids: OUT, mask: OUT_MASK})
    found = embgrad.evaluate(model(), batch, embgrad.Sum(), call=calls(ids) if by_call else None)
    np.testing.assert_allclose(found, by_hand(IDS, OUT, OUT_MASK))


def test_the_decoders_lookup_has_the_decoders_mask() -> None:
    batch = embgrad.TokenBatch(IDS, MASK, extras={"tgt_ids": OUT, "tgt_mask": OUT_MASK})
    g = embgrad.gradients(model(), batch, embgrad.Sum(), at="D", call=calls("tgt_ids", "D"))
    np.testing.assert_array_equal(g.ids, OUT)
    np.testing.assert_array_equal(g.mask, OUT_MASK)
    np.testing.assert_allclose(g.values, OUT_MASK[..., None].repeat(2, 2))


@pytest.mark.parametrize(
    "mask", [{"tgt_mask": OUT_MASK}, {"tgt_attention_mask": OUT_MASK}, {"tgt_valid_length": np.array([2, 3])}, {}]
)
@pytest.mark.parametrize("table", ["E", "D"])
def test_decoder_ids_under_another_name_are_known_by_the_lookup(mask: dict[str, Any], table: str) -> None:
    real = OUT_MASK if mask else np.ones_like(OUT)
    batch = embgrad.TokenBatch(IDS, MASK, extras={"tgt_ids": OUT, **mask})
    weights = {"E": E, "D": D}[table]
    for _ in range(2):  # the second is remembered
        found = embgrad.evaluate(model(), batch, embgrad.Sum(), call=calls("tgt_ids", table))
        np.testing.assert_allclose(found, by_hand(IDS, OUT, real, weights))


def test_a_decoder_that_looks_up_one_position_after_another() -> None:
    def call(model: Any, inputs: Any) -> Any:
        mean = lookup(model["E"], inputs["input_ids"]).sum(1) * Tensor(np.full((1, 1), 1 / 3))
        columns = [lookup(model["D"], inputs["tgt_ids"][:, position]).reshape(2, 1, 2) for position in range(3)]
        wide = [column @ Tensor(np.eye(2)) for column in columns]
        picks = [np.eye(3)[:, position : position + 1] for position in range(3)]
        rows = [Tensor(pick) @ column for pick, column in zip(picks, wide, strict=True)]
        return rows[0] + rows[1] + rows[2] + mean.reshape(2, 1, 2)

    batch = embgrad.TokenBatch(IDS, MASK, extras={"tgt_ids": OUT})
    np.testing.assert_allclose(
        embgrad.evaluate(model(), batch, embgrad.Sum(), call=call), by_hand(IDS, OUT, np.ones_like(OUT), D)
    )


UNDECIDED = r"looks up the further input '{}' beside the batch's ids: whether the output's positions are this input's"


@pytest.mark.parametrize(
    ("name", "further"),
    [
        ("y", {}),
        ("answer_ids", {"answer_mask": OUT_MASK}),
        ("tgt_ids", {"tgt_padding": OUT_MASK}),  # 1 may be padding
        ("tgt_ids", {"tgt_keep": np.ones(2)}),
    ],
)
def test_an_output_that_may_be_of_either_text_is_refused(name: str, further: dict[str, Any]) -> None:
    batch = embgrad.TokenBatch(IDS, MASK, extras={name: OUT, **further})
    for call in (calls(name), calls(name)):
        with pytest.raises(embgrad.errors.ObjectiveError, match=UNDECIDED.format(name)):
            embgrad.gradients(model(), batch, embgrad.Sum(), call=call)

    def named(model: Any, inputs: Any) -> Any:
        return {"encoder_states": calls(name)(model, inputs)}

    found = embgrad.evaluate(model(), batch, embgrad.Sum(output="encoder_states"), call=named)
    np.testing.assert_allclose(found, by_hand(IDS, OUT, MASK))


@pytest.mark.parametrize("name", ["y", "answer_ids"])
def test_an_output_of_two_axes_that_may_be_of_either_text_is_refused(name: str) -> None:
    further = {"answer_mask": OUT_MASK} if name == "answer_ids" else {}
    batch = embgrad.TokenBatch(IDS, MASK, extras={name: OUT, **further})
    with pytest.raises(embgrad.errors.ObjectiveError, match=UNDECIDED.format(name)):
        embgrad.gradients(
            model(), batch, embgrad.Sum(), call=lambda model, inputs: calls(name)(model, inputs).sum(2), batch_size=None
        )


def test_a_second_text_is_no_obstacle_to_an_output_without_positions() -> None:
    batch = embgrad.TokenBatch(IDS, MASK, extras={"y": OUT})
    pooled = lambda model, inputs: calls("y")(model, inputs).sum(1)  # noqa: E731
    np.testing.assert_allclose(
        embgrad.evaluate(model(), batch, embgrad.Sum(), call=pooled), by_hand(IDS, OUT, np.ones_like(OUT))
    )


def test_a_second_text_with_the_same_padding_is_no_obstacle() -> None:
    batch = embgrad.TokenBatch(IDS, MASK, extras={"y_ids": OUT, "y_mask": MASK})
    np.testing.assert_allclose(
        embgrad.evaluate(model(), batch, embgrad.Sum(), call=calls("y_ids")), by_hand(IDS, OUT, MASK)
    )


@pytest.mark.parametrize("name", ["language_ids", "position_ids"])
def test_an_input_for_each_position_is_no_text(name: str) -> None:
    batch = embgrad.TokenBatch(IDS, MASK, extras={name: OUT})
    g = embgrad.gradients(model(), batch, embgrad.Sum(), call=calls(name, "D"), at=["word", "D"])
    np.testing.assert_allclose(g["word"].objective, by_hand(IDS, OUT, MASK, D))
    np.testing.assert_array_equal(g["D"].mask, MASK)


@pytest.mark.parametrize("name", ["y", "tgt_ids"])
def test_the_tokens_of_an_unknown_decoder_are_not_scored(name: str) -> None:
    batch = embgrad.TokenBatch(IDS, MASK, extras={name: OUT})
    with pytest.raises(embgrad.errors.BatchError, match=rf"looks up the further input '{name}' .*'decoder_input_ids'"):
        embgrad.attribute_tokens(model(), batch, call=calls(name))


def test_decoder_ids_under_two_names_are_refused() -> None:
    batch = {"input_ids": IDS, "decoder_input_ids": OUT, "decoder_token_ids": OUT}
    with pytest.raises(
        embgrad.errors.BatchError, match="decoder ids under 'decoder_input_ids' and 'decoder_token_ids'"
    ):
        embgrad.gradients(model(), batch, embgrad.Sum())


@pytest.mark.parametrize(
    "extras",
    [
        {"decoder_token_ids": OUT, "decoder_padding_mask": OUT_MASK},
        {"my_position_ids": OUT},
        {"y": OUT_MASK},  # 0 and 1 alone
        {"y": OUT - 2},  # below 0
        {"y": OUT / 2},
        {"y": OUT[:, 0]},
    ],
)
def test_no_pass_is_added_for_a_batch_without_a_second_text(extras: Any) -> None:
    passes = []

    def call(model: Any, inputs: Any) -> Tensor:
        passes.append(1)
        return states(model, inputs["input_ids"], OUT)

    embgrad.gradients(model(), embgrad.TokenBatch(IDS, MASK, extras=extras), embgrad.Sum(), call=call)
    assert len(passes) == 1


def test_an_input_is_no_text_where_some_of_its_positions_alone_are_looked_up() -> None:
    def call(model: Any, inputs: Any) -> Tensor:
        return states(model, inputs["input_ids"], IDS) + lookup(model["E"], inputs["y"][:, 0]).reshape(2, 1, 2)

    found = embgrad.evaluate(model(), embgrad.TokenBatch(IDS, MASK, extras={"y": OUT}), embgrad.Sum(), call=call)
    np.testing.assert_allclose(found, by_hand(IDS, IDS, MASK) + MASK.sum(1) * E[OUT[:, 0]].sum(1))


def takes_ids(input_ids: Any) -> None: ...


def takes_decoder_ids(input_ids: Any, decoder_input_ids: Any = None) -> None: ...


def takes_all(**inputs: Any) -> None: ...


@pytest.mark.parametrize(
    ("forward", "config", "takes"),
    [
        (takes_ids, {}, False),
        (takes_ids, {"is_encoder_decoder": True}, False),
        (takes_decoder_ids, {}, True),
        (takes_decoder_ids, {"is_encoder_decoder": False}, True),
        (takes_decoder_ids, {"text_config": Of(is_encoder_decoder=False)}, False),
        (takes_decoder_ids, {"text_config": Of(is_encoder_decoder=True)}, True),
        (takes_decoder_ids, {"text_config": Of(is_encoder_decoder=False), "is_encoder_decoder": True}, True),
        (takes_decoder_ids, {"use_decoder_only_language_model": True}, False),
        (takes_all, {}, None),
        (takes_all, {"is_encoder_decoder": True}, True),
        (takes_all, {"is_encoder_decoder": False}, False),
        (takes_all, {"is_encoder_decoder": "perhaps"}, None),
        (None, {}, None),
    ],
)
def test_whether_a_model_takes_decoder_ids(forward: Any, config: Any, takes: bool | None) -> None:
    assert takes_decoder(Of(forward=forward, config=Of(**config))) is takes
