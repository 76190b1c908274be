"""Models of transformers that pad the ids inside, or put a prompt or an image before them, beside autograd by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import embgrad

RANDOM = np.random.default_rng(0)
COMMON = {
    "vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 256,
    "pad_token_id": 1, "sep_token_id": 2,
}  # fmt: skip
REFORMER = {
    "vocab_size": 60,
    "hidden_size": 16,
    "attention_head_size": 8,
    "num_attention_heads": 2,
    "feed_forward_size": 32,
    "axial_pos_embds": False,
    "attn_layers": ["local"],
    "local_attn_chunk_length": 4,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.0,
    "local_attention_probs_dropout_prob": 0.0,
    "pad_token_id": 1,
}
CPM_ANT = {
    "vocab_size": 60, "hidden_size": 16, "num_attention_heads": 2, "dim_head": 8, "dim_ff": 32, "num_hidden_layers": 1,
    "prompt_length": 4, "prompt_types": 8, "segment_types": 8,
    "position_bias_num_buckets": 16,
    "position_bias_max_distance": 64,
}  # fmt: skip


def padded(positions: int) -> dict[str, np.ndarray]:
    mask = np.ones((2, positions), int)
    mask[1, -2:] = 0
    return {"input_ids": np.where(mask, RANDOM.integers(5, 60, mask.shape), 1), "attention_mask": mask}


@dataclass(frozen=True)
class Case:
    """A model, a batch, and where in the output the objective reads.

    Attributes:
        model: the name of the model's class.
        config: the name of that of its configuration.
        options: the configuration.
        batch: the batch.
        position: the position of a per-position output; None for an output of each example.
        training: whether it runs in training mode, since it has no backward pass in evaluation mode.
        tokens: whether output tokens are attributed.
    """

    model: str
    config: str
    options: dict[str, Any]
    batch: dict[str, np.ndarray]
    position: int | None = 2
    training: bool = False
    tokens: bool = False

    def build(self) -> Any:
        """Return the model."""
        torch.manual_seed(0)
        return getattr(transformers, self.model)(getattr(transformers, self.config)(**self.options)).eval()

    def own(self, logits: Any) -> Any:
        """Return the logits at the text's positions, which are the last."""
        return logits[:, -self.batch["input_ids"].shape[1] :]


GIT = {
    "vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 64,
    "vision_config": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
        "image_size": 16, "patch_size": 8},
}  # fmt: skip
WITH_IMAGE = {**padded(6), "pixel_values": RANDOM.random((2, 3, 16, 16)).astype(np.float32)}
LONGFORMER = {**COMMON, "attention_window": [4, 4]}
BIG_BIRD = {**COMMON, "attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1}
CASES = [
    Case("LongformerForSequenceClassification", "LongformerConfig", LONGFORMER, padded(7), position=None),
    Case("BigBirdForMaskedLM", "BigBirdConfig", BIG_BIRD, padded(50)),
    Case("ReformerModelWithLMHead", "ReformerConfig", {**REFORMER, "is_decoder": True}, padded(8), training=True,
        tokens=True),
    Case("CpmAntForCausalLM", "CpmAntConfig", CPM_ANT, {"input_ids": RANDOM.integers(5, 60, (2, 7))}, tokens=True),
    Case("GitForCausalLM", "GitConfig", GIT, WITH_IMAGE, tokens=True),
]  # fmt: skip


def by_hand(case: Case, model: Any, scalar_of: Callable[[Any], Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradient of a scalar of the logits at the rows of the batch's ids, and these rows."""
    ids, kept = case.batch["input_ids"], []

    def keep(module: Any, args: Any, returned: torch.Tensor) -> torch.Tensor:
        indices = np.asarray(args[0]) if isinstance(args[0], torch.Tensor) else np.zeros(0)
        for start in range(indices.shape[1] - ids.shape[1] + 1 if indices.ndim == 2 else 0):
            columns = slice(start, start + ids.shape[1])
            if np.array_equal(indices[:, columns], ids):
                returned.retain_grad()
                kept.append((returned, columns, returned.detach().clone()))  # GIT adds positions in place
                break
        return returned

    tables = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    handles = [table.register_forward_hook(keep) for table in tables]
    model.train(case.training)
    scalar_of(model(**{name: torch.tensor(array) for name, array in case.batch.items()}).logits).backward()
    model.eval()
    for handle in handles:
        handle.remove()
    ((rows, columns, values),) = kept
    assert rows.grad is not None
    return rows.grad.numpy()[:, columns], values.numpy()[:, columns]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.model)
def test_gradients_and_attributions(case: Case) -> None:
    model, options = case.build(), {"training": case.training}
    index = 0 if case.position is None else 4
    objective = embgrad.Logit(index, position=case.position)
    gradient, rows = by_hand(
        case,
        model,
        lambda logits: logits[..., index].sum() if case.position is None else case.own(logits)[:, 2, index].sum(),
    )
    found = embgrad.gradients(model, case.batch, objective, **options)
    scale = np.abs(gradient).max()
    assert scale > 0
    np.testing.assert_allclose(found.values, gradient, rtol=1e-5, atol=1e-6 * scale)
    made = embgrad.attribute(model, case.batch, objective, "input_x_gradient", **options)
    np.testing.assert_allclose(made.values, gradient * rows, rtol=1e-5, atol=1e-6 * scale * np.abs(rows).max())
    assert embgrad.memory(model, case.batch, objective, **options).peak > 0


@pytest.mark.parametrize("case", [case for case in CASES if case.tokens], ids=lambda case: case.model)
@pytest.mark.filterwarnings("ignore:the log-probability of the output token:embgrad.errors.EmbgradWarning")
def test_output_tokens(case: Case) -> None:  # CPM-Ant reads the whole text at each position, of which is warned
    model = case.build()
    labels = torch.tensor(case.batch["input_ids"][:, 2])
    gradient, rows = by_hand(
        case, model, lambda logits: case.own(logits)[:, 1].log_softmax(-1).gather(1, labels[:, None]).sum()
    )
    made = embgrad.attribute_tokens(model, case.batch, targets=[2], training=case.training)
    expected = (gradient * rows).sum(-1) * case.batch.get("attention_mask", 1)
    np.testing.assert_allclose(made.scores[:, 0], expected, rtol=1e-3, atol=1e-5 * np.abs(expected).max())
