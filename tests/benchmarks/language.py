"""A language model's logit at one position: GPT-2 with random weights, in PyTorch and TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

import embgrad
from tests.benchmarks.cases import Case
from tests.benchmarks.measuring import Mode

#: The sizes of the model: MiniLM's, with GPT-2's vocabulary.
SIZES: Final = {"n_layer": 6, "n_embd": 384, "n_head": 12, "vocab_size": 50257}

TOKEN: Final = 5


def by_torch(case: Case, *, kept: bool = False) -> Mode:
    """Compute all logits, as the model does by default, or with `logits_to_keep` only the last."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**SIZES)).eval().requires_grad_(False)
    batch = _batch(case)
    ids = torch.tensor(batch.ids)
    options = {"logits_to_keep": 1} if kept else {}

    def by_hand() -> np.ndarray:
        rows = model.transformer.wte(ids).requires_grad_()
        objective = model(inputs_embeds=rows, **options).logits[:, -1, TOKEN].sum()
        return np.asarray(torch.autograd.grad(objective, rows)[0].numpy())

    def forward() -> None:
        with torch.no_grad():
            model(ids, **options)

    def backward() -> None:
        model.requires_grad_(True)
        model(ids, **options).logits[:, -1, TOKEN].sum().backward()
        model.zero_grad(set_to_none=True)
        model.requires_grad_(False)

    def call(model: Any, inputs: Any) -> Any:
        return model(**inputs, **options)

    def native(outputs: Any) -> Any:
        return outputs.logits[:, -1, TOKEN]

    objective, own = (native, {"call": call}) if kept else (embgrad.Logit(TOKEN, position=-1), {})
    return Mode(
        forward,
        {"inputs_embeds, the model frozen for good": by_hand},
        backward,
        lambda: embgrad.gradients(model, batch, objective, **own),
    )


def by_tensorflow(case: Case) -> Mode:
    import tensorflow as tf
    from transformers import GPT2Config, TFGPT2LMHeadModel

    tf.random.set_seed(0)
    model, batch = TFGPT2LMHeadModel(GPT2Config(**SIZES)), _batch(case)
    ids = tf.constant(batch.ids)
    model(ids)
    table = next(weight for weight in model.weights if tuple(weight.shape) == (SIZES["vocab_size"], SIZES["n_embd"]))

    def by_hand() -> np.ndarray:
        rows = tf.gather(table, ids)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(rows)
            objective = tf.reduce_sum(model(input_ids=None, inputs_embeds=rows).logits[:, -1, TOKEN])
        return np.asarray(tape.gradient(objective, rows).numpy())

    def backward() -> None:
        with tf.GradientTape() as tape:
            objective = tf.reduce_sum(model(ids).logits[:, -1, TOKEN])
        tape.gradient(objective, model.trainable_variables)

    return Mode(
        lambda: model(ids).logits.numpy(),
        {"the tape watches the rows alone, inputs_embeds": by_hand},
        backward,
        lambda: embgrad.gradients(model, batch, embgrad.Logit(TOKEN, position=-1)),
    )


MODES: Final[dict[str, Callable[[Case], Mode]]] = {
    "PyTorch, GPT-2": by_torch,
    "PyTorch, GPT-2, logits_to_keep=1": lambda case: by_torch(case, kept=True),
    "TensorFlow, GPT-2": by_tensorflow,
}


def _batch(case: Case) -> embgrad.TokenBatch:
    ids = np.random.default_rng(0).integers(0, SIZES["vocab_size"], (case.examples, case.positions))
    return embgrad.TokenBatch(ids)
