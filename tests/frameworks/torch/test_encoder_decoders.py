"""Encoder-decoders: objectives over the decoder's positions, its ids and mask, and labels alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)

import embgrad

IDS = np.array([[5, 6, 7, 1], [8, 9, 1, 0]])
MASK = np.array([[1, 1, 1, 1], [1, 1, 1, 0]])
DECODER = np.array([[0, 11, 12, 13, 14, 15], [0, 21, 22, 0, 0, 0]])
DECODER_MASK = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])
LABELS = np.array([[11, 12, 13, 14, 15, 1], [21, 22, 1, -100, -100, -100]])
SOURCE = {"input_ids": IDS, "attention_mask": MASK}
BATCH = {**SOURCE, "decoder_input_ids": DECODER, "decoder_attention_mask": DECODER_MASK}
T5 = {"vocab_size": 40, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "pad_token_id": 0}


def t5(cls: Any = T5ForConditionalGeneration) -> Any:
    torch.manual_seed(0)
    return cls(T5Config(**T5, decoder_start_token_id=0)).double().eval()


def bart() -> Any:
    torch.manual_seed(0)
    halves = {f"{half}_{what}": 2 for half in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    sizes = {"encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 16}
    config = BartConfig(vocab_size=40, d_model=16, **halves, **sizes, decoder_start_token_id=2, pad_token_id=0)
    return BartForConditionalGeneration(config).double().eval()


def by_hand(model: Any, batch: dict[str, Any], read: Callable[[Any], torch.Tensor]) -> np.ndarray:
    """PyTorch's own gradient of the encoder's looked-up rows; the decoder's rows come from the same table, and do not count."""
    native = {name: torch.tensor(value) for name, value in batch.items()}
    ids = native.pop("input_ids")
    rows = model.get_input_embeddings().weight.detach()[ids].requires_grad_()
    scale = getattr(model.get_input_embeddings(), "embed_scale", 1.0)
    value = read(model(inputs_embeds=rows * scale, **native))
    return torch.autograd.grad(value, rows)[0].numpy()


def losses(logits: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(LABELS).flatten(), reduction="sum")


@pytest.mark.parametrize("build", [t5, bart])
def test_cross_entropy_of_labels_of_the_decoders_shape(build: Callable[[], Any]) -> None:
    model = build()
    result = embgrad.gradients(model, BATCH, embgrad.CrossEntropy(LABELS), check=True)
    np.testing.assert_allclose(
        result.values, by_hand(model, BATCH, lambda out: losses(out.logits)), rtol=1e-9, atol=1e-14
    )
    assert result.objective.sum() == pytest.approx(float(losses(model(**native()).logits)), rel=1e-12)
    assert result.values.shape == (*IDS.shape, 16)


def native(batch: dict[str, Any] = BATCH) -> dict[str, Any]:
    return {name: torch.tensor(value) for name, value in batch.items()}


@pytest.mark.parametrize("labels", [LABELS, np.where(LABELS[:, :4] == 13, 3, LABELS[:, :4])])
@pytest.mark.parametrize("build", [t5, bart])
def test_labels_serve_as_decoder_ids(build: Callable[[], Any], labels: np.ndarray) -> None:
    """The model makes the decoder's ids of them; where they are as many as the ids, too."""
    model, batch = build(), {**SOURCE, "labels": labels}
    last = [int(row.nonzero()[0][-1]) for row in labels != -100]
    result = embgrad.gradients(model, batch, embgrad.Logit(3, position=-1))
    own = by_hand(model, batch, lambda out: out.logits[0, last[0], 3] + out.logits[1, last[1], 3])
    np.testing.assert_allclose(result.values, own, rtol=1e-9, atol=1e-14)
    sum_of_losses = embgrad.gradients(model, batch, embgrad.CrossEntropy(labels)).objective.sum()
    expected = float(model(**native(batch)).loss) * (labels != -100).sum()
    assert sum_of_losses == pytest.approx(expected, rel=1e-9)


def test_missing_decoder_ids_are_reported() -> None:
    expected = (
        r"the model T5ForConditionalGeneration is an encoder-decoder, and raised ValueError without decoder ids: expected "
        r"'decoder_input_ids' in the batch's dict, of shape \(example, decoder position\), with 'decoder_attention_mask' if"
    )
    model = t5()
    for ask in (
        lambda: embgrad.gradients(model, SOURCE, embgrad.Logit(3)),
        lambda: embgrad.gradients(model, IDS, embgrad.Logit(3)),
        lambda: embgrad.points(model, SOURCE),
        lambda: embgrad.tables.table_gradients(model, SOURCE, embgrad.Logit(3)),
        lambda: embgrad.tables.parameter_gradients(model, SOURCE, embgrad.Logit(3)),
        lambda: embgrad.bisect(model, t5(), SOURCE, embgrad.Logit(3)),
    ):
        with pytest.raises(embgrad.errors.BatchError, match=expected) as caught:
            ask()
        assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(ValueError, match=r"input_ids"):  # the error of the user's own call comes out as it is
        embgrad.gradients(model, SOURCE, embgrad.Logit(3), call=lambda model, inputs: model(**inputs))
    embgrad.gradients(bart(), SOURCE, embgrad.Logit(3))  # which makes them of the encoder's


def test_the_lookups_of_a_table_that_both_halves_share() -> None:
    model = t5()
    objective = embgrad.CrossEntropy(LABELS)
    both = embgrad.gradients(model, BATCH, objective, at=["word", "shared#1"])
    assert both["word"].ids.tolist() == IDS.tolist()
    assert both["word"].provenance["path"] == "shared#0"
    assert both["shared#1"].values.shape == (*DECODER.shape, 16)
    assert both["shared#1"].ids.tolist() == DECODER.tolist()
    assert both["shared#1"].mask.tolist() == DECODER_MASK.tolist()
    pieces = embgrad.gradients(model, BATCH, objective, batch_size=1)
    np.testing.assert_allclose(pieces.values, both["word"].values, rtol=1e-9, atol=1e-14)
    each = embgrad.gradients(model, BATCH, objective, split=True)
    np.testing.assert_allclose(each.values, both["word"].values, rtol=1e-9, atol=1e-14)
    ledger = embgrad.tables.table_gradients(model, BATCH, objective)
    expected = torch.autograd.grad(losses(model(**native()).logits), model.shared.weight)[0].numpy()
    np.testing.assert_allclose(ledger.total, expected, rtol=1e-8, atol=1e-13)
