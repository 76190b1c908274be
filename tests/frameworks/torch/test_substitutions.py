"""Substitutions in PyTorch: the same ids as PyTorch's own gradient and the whole table give, by architecture and precision."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import embgrad

VOCAB, TOP = 500, 256
IDS = np.random.default_rng(0).integers(3, VOCAB, (2, 7))
MASK = np.array([[1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1, 1]])
LARGE = {
    "vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
}  # fmt: skip


def built(name: str) -> Any:
    """Return a small model with random weights."""
    torch.manual_seed(0)
    config: Any
    if name == "gpt2":
        config = transformers.GPT2Config(vocab_size=VOCAB, n_embd=16, n_layer=2, n_head=2, initializer_range=0.3)
        return transformers.GPT2LMHeadModel(config).eval()
    if name == "bert":
        config = transformers.BertConfig(**LARGE, initializer_range=0.3)
        return transformers.BertForSequenceClassification(config).eval()
    if name == "albert":
        config = transformers.AlbertConfig(**LARGE, embedding_size=8, initializer_range=0.3)
        return transformers.AlbertForSequenceClassification(config).eval()
    if name == "gemma3":
        config = transformers.Gemma3TextConfig(
            **LARGE, head_dim=8, num_key_value_heads=1, initializer_range=0.3, layer_types=["full_attention"] * 2
        )
        return transformers.Gemma3ForCausalLM(config).eval()
    config = transformers.T5Config(vocab_size=VOCAB, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2)
    return transformers.T5ForConditionalGeneration(config).eval()


def by_hand(
    model: Any, table: Any, inputs: dict[str, Any], value: Any, sign: int = 1, scale: float = 1.0, top: int = TOP
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ids and scores, (example, position, top), and L, by PyTorch's gradient at the table's module.

    Args:
        model: the model.
        table: the module that looks rows up.
        inputs: the model's inputs.
        value: takes the outputs and returns L of each example.
        sign: the goal.
        scale: the factor by which the module multiplies rows.
        top: how many.
    """
    seen: list[Any] = []

    def hook(module: Any, args: Any, output: Any) -> Any:
        seen.append((args[0], output.detach().requires_grad_()))
        return seen[-1][1]

    handle = table.register_forward_hook(hook)
    tensors = {name: torch.tensor(array) for name, array in inputs.items()}
    try:
        objective = value(model(**tensors))
        ids, leaf = next((ids, leaf) for ids, leaf in seen if torch.equal(ids, tensors["input_ids"]))
        (gradient,) = torch.autograd.grad(objective.sum(), leaf)
    finally:
        handle.remove()
    rows = table.weight.detach().double().numpy()
    slopes = gradient.double().numpy() * scale
    scores = np.einsum("vd,epd->epv", rows, slopes) - np.einsum("epd,epd->ep", rows[ids.numpy()], slopes)[..., None]
    np.put_along_axis(scores, ids.numpy()[..., None], -np.inf * sign, 2)
    order = np.argsort(-sign * scores, axis=-1, kind="stable")[..., :top]
    return order, np.take_along_axis(scores, order, -1), objective.detach().numpy()


def expect_same(made: Any, ids: np.ndarray, scores: np.ndarray) -> None:
    searched = made.searched
    np.testing.assert_array_equal(made.ids[searched], ids[searched])
    np.testing.assert_allclose(made.scores[searched], scores[searched], rtol=1e-5, atol=1e-5)
    assert (made.ids[~searched] == -1).all()


@pytest.mark.parametrize(("goal", "sign"), [("maximize", 1), ("minimize", -1)])
@pytest.mark.parametrize("name", ["gpt2", "bert", "albert", "gemma3"])
def test_the_best_ids_are_those_of_a_dense_computation_by_hand(name: str, goal: str, sign: int) -> None:
    model = built(name)
    table = model.get_input_embeddings()
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    scale = 4.0 if name == "gemma3" else 1.0  # the root of the width, by which Gemma multiplies inside the module
    last = MASK.sum(1) - 1
    if name in ("gpt2", "gemma3"):
        objective = embgrad.Logit(7, position=-1)
        ids, scores, value = by_hand(
            model, table, inputs, lambda outputs: outputs.logits[range(2), last, 7], sign, scale
        )
    else:
        objective = embgrad.Logit(1)
        ids, scores, value = by_hand(model, table, inputs, lambda outputs: outputs.logits[:, 1], sign)
    made = embgrad.substitutions(model, inputs, objective, top=TOP, goal=goal)
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    np.testing.assert_array_equal(made.searched, MASK)
    assert made.provenance["vocab"] == VOCAB
    np.testing.assert_allclose(made.objective, value, rtol=1e-5)
    expect_same(made, ids, scores)


#: Prints the memory in MiB that a call takes beyond a model with a table of 732 MiB.
LARGE_TABLE = """
import numpy as np, torch, transformers
import embgrad
from embgrad.common.memory_meter import process_meter
config = transformers.BertConfig(vocab_size=250_000, num_hidden_layers=2, max_position_embeddings=128)
model = transformers.BertForSequenceClassification(config).eval()
ids = np.random.default_rng(0).integers(0, 250_000, (4, 128))
embgrad.substitutions(model, ids[:1, :8], embgrad.Logit(1), top=4)
meter = process_meter()
meter.restart()
before, _ = meter.read()
made = embgrad.substitutions(model, ids, embgrad.Logit(1))
assert made.shape == (4, 128, 256) and made.searched.all()
print((meter.read()[1] - before) / 2**20)
"""


@pytest.mark.slow
def test_a_table_of_250000_rows_takes_no_more_than_300_mib() -> None:
    """The scores of all 512 positions at once would be 977 MiB, a copy of the table 732 MiB."""
    done = subprocess.run([sys.executable, "-c", LARGE_TABLE], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) < 300
