"""Scores of positions: answers' spans, replaced tokens; and classifiers with as many classes as a batch has positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers

import embgrad

LONG, SHORT = [2, 7, 8, 9, 6, 3], [2, 7, 8, 3]
PAIR = {
    "input_ids": np.array([LONG, [*SHORT, 0, 0]]),
    "attention_mask": np.array([[1] * 6, [1] * 4 + [0] * 2]),
}
ALONE = {"input_ids": np.array([SHORT]), "attention_mask": np.ones((1, 4), int)}
SMALL = {
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "initializer_range": 0.5,
}
BART = {f"{half}_{what}": 1 for half in ("encoder", "decoder") for what in ("layers", "attention_heads")}
BART |= {"vocab_size": 20, "d_model": 8, "encoder_ffn_dim": 12, "decoder_ffn_dim": 12, "max_position_embeddings": 12}
MODELS: dict[str, tuple[str, str, dict[str, Any], str | None]] = {
    "span": ("BertForQuestionAnswering", "BertConfig", SMALL, "start_logits"),
    "end": ("BertForQuestionAnswering", "BertConfig", SMALL, "end_logits"),
    "encoder-decoder": ("BartForQuestionAnswering", "BartConfig", {**BART, "init_std": 0.5}, "start_logits"),
    "replaced tokens": ("ElectraForPreTraining", "ElectraConfig", {**SMALL, "embedding_size": 8}, None),
}


def built(name: str) -> Any:
    cls, config, options, _ = MODELS[name]
    torch.manual_seed(0)
    return getattr(transformers, cls)(getattr(transformers, config)(**options)).double().eval()


@pytest.mark.parametrize("name", MODELS)
def test_a_padded_example_is_as_alone(name: str) -> None:
    model, output = built(name), MODELS[name][3]
    with torch.no_grad():
        returned = model(**{key: torch.tensor(value) for key, value in ALONE.items()})
    scores = torch.log_softmax(returned[output or "logits"][0], 0)
    for make in (embgrad.CrossEntropy, embgrad.Probability, embgrad.Margin, embgrad.Logit):
        alone = embgrad.gradients(model, ALONE, make([2], output=output))
        whole = embgrad.gradients(model, PAIR, make([2, 2], output=output), check=True)
        np.testing.assert_allclose(whole.objective[1], alone.objective[0], rtol=1e-10)
        np.testing.assert_allclose(whole.values[1, :4], alone.values[0], rtol=1e-7, atol=1e-10)
        assert whole.pad_leak == 0
        if make is embgrad.CrossEntropy:
            np.testing.assert_allclose(whole.objective[1], -scores[2], rtol=1e-10)
    with pytest.raises(embgrad.errors.ObjectiveError, match=r"index 4 at example 1 is padding: .* \[0, 1, 2, 3\]"):
        embgrad.gradients(model, PAIR, embgrad.Logit([4, 4], output=output))


def test_attention_between_real_positions() -> None:
    torch.manual_seed(0)
    config = transformers.BertConfig(**SMALL, output_attentions=True, attn_implementation="eager")
    model = transformers.BertModel(config).double().eval()
    batch = {name: value[:, :6] for name, value in PAIR.items()}
    values = embgrad.evaluate(model, batch, embgrad.Sum(output="attentions.0"))
    np.testing.assert_allclose(values, [6 * 2, 4 * 2])  # each row of each head sums to 1 over the real positions
