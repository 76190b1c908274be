"""Models of transformers whose evaluation mode has no backward pass: attributions in training mode, beside autograd by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers

import embgrad

IDS = np.arange(32).reshape(2, 16) + 3
BATCH = {"input_ids": IDS}


def rwkv() -> Any:
    torch.manual_seed(0)
    config = transformers.RwkvConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=2, attention_hidden_size=16, intermediate_size=32,
        context_length=32,
    )  # fmt: skip
    return transformers.RwkvForCausalLM(config).eval()


def reformer(dropout: float = 0.0) -> Any:
    torch.manual_seed(0)
    config = transformers.ReformerConfig(
        vocab_size=60,
        hidden_size=16,
        attention_head_size=8,
        num_attention_heads=2,
        feed_forward_size=32,
        axial_pos_shape=(4, 4),
        axial_pos_embds_dim=(8, 8),
        attn_layers=["local"],
        local_attn_chunk_length=4,
        is_decoder=False,
        max_position_embeddings=16,
        hidden_dropout_prob=dropout,
        local_attention_probs_dropout_prob=0.0,
    )
    return transformers.ReformerForSequenceClassification(config).eval()


def gradient_by_hand(model: Any, scalar_of: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradient of a scalar of the logits at the rows of the table in training mode, and these rows."""
    rows = model.get_input_embeddings()(torch.tensor(IDS)).detach().requires_grad_()
    model.train()
    scalar_of(model(inputs_embeds=rows).logits).backward()
    model.eval()
    assert rows.grad is not None
    return rows.grad.numpy(), rows.detach().numpy()


CASES = {
    "rwkv": (rwkv, embgrad.Logit(1, position=-1), lambda logits: logits[:, -1, 1].sum()),
    "reformer": (reformer, embgrad.Logit(1), lambda logits: logits[:, 1].sum()),
}


@pytest.mark.parametrize("name", CASES)
def test_a_model_without_a_backward_pass_in_evaluation_mode_is_attributed_in_training_mode(name: str) -> None:
    make, objective, scalar_of = CASES[name]
    model = make()
    with pytest.raises(
        embgrad.errors.UnsupportedError, match=r"runs in evaluation mode without gradients.*Pass training=True"
    ):
        embgrad.attribute(model, BATCH, objective, "saliency")
    found = embgrad.attribute(model, BATCH, objective, "input_x_gradient", training=True)
    gradient, rows = gradient_by_hand(model, scalar_of)
    np.testing.assert_allclose(found.values, gradient * rows, rtol=1e-4, atol=1e-5 * np.abs(gradient * rows).max())
    assert (found.provenance["training"], found.provenance["random"]) == (True, False)
    assert not any(module.training for module in model.modules())
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in make().parameters())
