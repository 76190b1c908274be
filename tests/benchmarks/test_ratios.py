"""The time of `gradients` at MiniLM's size, as a multiple of the forward pass and of the same gradient by hand.

Nothing is asserted of times; the table is printed: `make benchmarks`, or `pytest tests/benchmarks -s`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.demo import minilm_folder
from embgrad.testing.timing import least_times
from tests.conftest import backends_under_test

EXAMPLES, POSITIONS = 16, 128
ROUNDS = int(os.environ.get("EMBGRAD_BENCHMARK_ROUNDS", "7"))

Functions = dict[str, Callable[[], Any]]


def batch() -> embgrad.TokenBatch:
    random = np.random.default_rng(0)
    shape = (EXAMPLES, POSITIONS)
    return embgrad.TokenBatch(random.integers(1000, 30000, shape), np.ones(shape), np.zeros(shape))


def by_torch(model: Any, tokens: embgrad.TokenBatch) -> Functions:
    import torch

    inputs = {name: torch.tensor(value) for name, value in tokens.to_huggingface().items()}

    def forward() -> None:
        with torch.no_grad():
            model(**inputs)

    def by_hand() -> np.ndarray:
        kept: list[torch.Tensor] = []

        def hook(module: Any, arguments: Any, output: torch.Tensor) -> torch.Tensor:
            kept.append(output.detach().requires_grad_())
            return kept[0]

        handle = model.embeddings.word_embeddings.register_forward_hook(hook)
        try:
            objective = model(**inputs).pooler_output.sum()
        finally:
            handle.remove()
        return torch.autograd.grad(objective, kept)[0].numpy()

    return {"forward": forward, "by hand": by_hand}


def by_tensorflow(model: Any, tokens: embgrad.TokenBatch) -> Functions:
    import tensorflow as tf

    inputs = {name: tf.constant(value) for name, value in tokens.to_huggingface().items()}
    others = {name: value for name, value in inputs.items() if name != "input_ids"}
    table = model.bert.embeddings.weight

    def gradient(ids: Any) -> Any:
        rows = tf.gather(table, ids)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(rows)
            outputs = model(input_ids=None, inputs_embeds=rows, training=False, **others)
            objective = tf.reduce_sum(outputs.pooler_output)
        return tape.gradient(objective, rows)

    compiled = tf.function(gradient)
    compiled_forward = tf.function(lambda: model(inputs, training=False).pooler_output)
    return {
        "forward": lambda: model(inputs, training=False).pooler_output.numpy(),
        "by hand": lambda: gradient(inputs["input_ids"]).numpy(),
        "forward, compiled": lambda: compiled_forward().numpy(),
        "by hand, compiled": lambda: compiled(inputs["input_ids"]).numpy(),
    }


def by_gluon(model: Any, tokens: embgrad.TokenBatch) -> Functions:
    import mxnet as mx

    inputs = [mx.nd.array(value, dtype=value.dtype) for value in tokens.to_gluonnlp()]

    def forward() -> None:
        for output in model(*inputs):
            output.wait_to_read()

    def by_hand() -> np.ndarray:
        kept: list[Any] = []

        def hook(block: Any, arguments: Any, output: Any) -> None:
            output.attach_grad()
            kept.append(output)

        handle = model.word_embed[0].register_forward_hook(hook)
        try:
            with mx.autograd.record(train_mode=False):
                objective = model(*inputs)[1].sum()
        finally:
            handle.detach()
        return mx.autograd.grad(objective, kept, train_mode=False)[0].asnumpy()

    return {"forward": forward, "by hand": by_hand}


BY_HAND = {"torch": by_torch, "tensorflow": by_tensorflow, "gluon": by_gluon}


@pytest.mark.parametrize("framework", [name for name in backends_under_test() if name != "reference"])
def test_ratio_to_the_forward_pass_and_to_code_by_hand(framework: str) -> None:
    model, tokens, objective = embgrad.load_bert(minilm_folder(), framework), batch(), embgrad.Sum(output="pooled")
    functions = BY_HAND[framework](model, tokens)
    expected = functions["by hand"]()
    figures = embgrad.gradients(model, tokens, objective).values
    np.testing.assert_allclose(figures, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    times = least_times({**functions, "gradients": lambda: embgrad.gradients(model, tokens, objective)}, ROUNDS)
    print(f"\n{framework}, {EXAMPLES} × {POSITIONS}, least of {ROUNDS}:")
    for name, seconds in times.items():
        to_forward, to_hand = seconds / times["forward"], seconds / times["by hand"]
        print(f"  {name:<20} {to_forward:5.2f} × forward  {to_hand:5.2f} × by hand")
