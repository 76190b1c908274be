"""S4: hidden states, their gradient, and ablations of both, against each framework's own code by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import torch
import transformers
from embgrad_gluon import import_mxnet

import embgrad

mx = import_mxnet()
IDS = np.array([[5, 17, 30, 42], [41, 8, 17, 55]])
SIZES = {"vocab_size": 60, "n_embd": 24, "n_layer": 3, "n_head": 2, "n_positions": 16}
FRAMEWORKS = pytest.mark.parametrize("framework", ["torch", "tensorflow", "gluon"])


def torch_gpt2() -> Any:
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES)).eval()


def torch_by_hand(model: Any, edit: Any = None, value: Any = None) -> dict[str, np.ndarray]:
    """Hooks on the last block: its states, the gradient that came, and that at the word lookup; the sum of the logits."""
    kept: dict[str, Any] = {}

    def block(module: Any, inputs: Any, output: Any) -> Any:
        hidden = output[0] if isinstance(output, tuple) else output
        if value is not None:
            hidden = torch.tensor(value(hidden.detach().numpy())).requires_grad_()
        kept["states"] = hidden
        hidden.register_hook(lambda grad: kept.update(before=grad.clone()))
        if edit is not None:
            hidden.register_hook(lambda grad: torch.tensor(edit(grad.numpy())))
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

    handles = [
        model.transformer.h[-1].register_forward_hook(block),
        model.transformer.wte.register_forward_hook(lambda m, i, o: kept.update(rows=o) or o.retain_grad()),
    ]
    logits = model(input_ids=torch.tensor(IDS)).logits
    logits.sum().backward()
    for handle in handles:
        handle.remove()
    upstream = kept["rows"].grad
    return {
        "states": kept["states"].detach().numpy(),
        "before": kept["before"].numpy(),
        "word": np.zeros((2, 4, 24)) if upstream is None else upstream.numpy(),
        "objective": logits.sum((1, 2)).detach().numpy(),
    }


def tensorflow_gpt2() -> Any:
    tf.keras.utils.set_random_seed(0)
    model = transformers.TFGPT2LMHeadModel(transformers.GPT2Config(**SIZES))
    model({"input_ids": tf.constant(IDS)})
    return model


def tensorflow_by_hand(model: Any, edit: Any = None, value: Any = None) -> dict[str, np.ndarray]:
    """The last block's `call` replaced by hand under a tape."""
    kept: dict[str, Any] = {}
    last = model.transformer.h[-1]
    original = last.call

    @tf.custom_gradient
    def passing(hidden: Any) -> Any:
        def back(grad: Any) -> Any:
            kept["before"] = grad
            return grad if edit is None else tf.constant(edit(grad.numpy()))

        return tf.identity(hidden), back

    def call(*args: Any, **kwargs: Any) -> Any:
        first, *rest = original(*args, **kwargs)
        if value is not None:
            first = tf.constant(value(first.numpy()))
            tape.watch(first)
        kept["states"] = first
        return (passing(first), *rest)

    rows = tf.Variable(
        tf.gather(
            model.transformer.wte.weight
            if hasattr(model.transformer.wte, "weight")
            else model.transformer.wte.embeddings,
            IDS,
        )
    )
    last.call = call
    try:
        with tf.GradientTape() as tape:
            logits = model(inputs_embeds=rows, input_ids=None).logits
            total = tf.reduce_sum(logits)
    finally:
        del last.call
    upstream = tape.gradient(total, rows)
    return {
        "states": kept["states"].numpy(),
        "before": kept["before"].numpy(),
        "word": np.zeros((2, 4, 24)) if upstream is None else upstream.numpy(),
        "objective": tf.reduce_sum(logits, (1, 2)).numpy(),
    }


class Block(mx.gluon.HybridBlock):
    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.norm = mx.gluon.nn.LayerNorm(in_channels=24)
            self.inner = mx.gluon.nn.Dense(48, flatten=False, activation="tanh", in_units=24)
            self.outer = mx.gluon.nn.Dense(24, flatten=False, in_units=48)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        bent = self.outer(self.inner(self.norm(x)))
        mixed = F.broadcast_add(bent, F.mean(x, axis=1, keepdims=True))
        return x + mixed, bent


class Language(mx.gluon.HybridBlock):
    """A small language model: a lookup by id and by position, three blocks, a norm, a head that shares the table."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.wte = mx.gluon.nn.Embedding(60, 24)
            self.wpe = mx.gluon.nn.Embedding(16, 24)
            self.h = mx.gluon.nn.HybridSequential()
            for _ in range(3):
                self.h.add(Block())
            self.norm = mx.gluon.nn.LayerNorm(in_channels=24)
            self.head = mx.gluon.nn.Dense(60, flatten=False, use_bias=False, in_units=24, params=self.wte.params)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        positions = F.contrib.arange_like(x, axis=1)
        hidden = F.broadcast_add(self.wte(x), F.expand_dims(self.wpe(positions), 0))
        for block in self.h._children.values():
            hidden, _ = block(hidden)
        return self.head(self.norm(hidden))


def gluon_gpt2() -> Any:
    mx.random.seed(0)
    net = Language()
    net.initialize(mx.init.Normal(0.3))
    return net


def gluon_by_hand(net: Any, edit: Any = None, value: Any = None) -> dict[str, np.ndarray]:
    """Two recorded halves by hand, cut behind the last block."""
    ids = mx.nd.array(IDS)
    with mx.autograd.record(train_mode=False):
        rows = net.wte(ids)
        rows.attach_grad()
        hidden = mx.nd.broadcast_add(rows, net.wpe(mx.nd.arange(4)).expand_dims(0))
        for block in net.h._children.values():
            hidden, _ = block(hidden)
    behind = mx.nd.array(hidden.asnumpy() if value is None else value(hidden.asnumpy()))
    behind.attach_grad()
    with mx.autograd.record(train_mode=False):
        logits = net.head(net.norm(behind))
    (before,) = mx.autograd.grad(logits, [behind], head_grads=mx.nd.ones_like(logits), train_mode=False)
    gone_on = before.asnumpy() if edit is None else edit(before.asnumpy())
    (upstream,) = mx.autograd.grad(hidden, [rows], head_grads=mx.nd.array(gone_on), train_mode=False)
    return {
        "states": behind.asnumpy(),
        "before": before.asnumpy(),
        "word": np.zeros((2, 4, 24)) if value is not None else upstream.asnumpy(),
        "objective": logits.sum((1, 2)).asnumpy(),
    }


CASES = {
    "torch": (torch_gpt2, torch_by_hand),
    "tensorflow": (tensorflow_gpt2, tensorflow_by_hand),
    "gluon": (gluon_gpt2, gluon_by_hand),
}


def close(actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual, expected, atol=2e-5 * max(np.abs(expected).max(), 1e-3))


def zero_in_place(grad: np.ndarray) -> None:
    grad[:] = 0


@FRAMEWORKS
def test_seed_hidden_gradients(framework: str) -> None:
    build, by_hand = CASES[framework]
    model = build()
    expected = by_hand(model)
    results = embgrad.gradients(model, IDS, embgrad.Sum(), at=["layer.-1", "word"])
    close(results["layer.-1"].activations, expected["states"])
    close(results["layer.-1"].values, expected["before"])
    close(results["word"].values, expected["word"])
    close(results["word"].objective, expected["objective"])


@FRAMEWORKS
@pytest.mark.parametrize("edit", [zero_in_place, lambda grad: np.zeros_like(grad)], ids=["in place", "by swap"])
def test_seed_hidden_gradients_ablated(framework: str, edit: Any) -> None:
    build, by_hand = CASES[framework]
    model = build()
    expected = by_hand(model, edit=lambda grad: grad * 0)
    results = embgrad.gradients(model, IDS, embgrad.Sum(), at=["word", "layer.0", "layer.-1"], edit={"layer.-1": edit})
    for name in results:
        assert not results[name].values.any()  # exactly zero upstream
    assert not expected["word"].any()
    close(results["layer.-1"].before, expected["before"])


@FRAMEWORKS
def test_seed_hidden_gradients_edited(framework: str) -> None:
    build, by_hand = CASES[framework]
    model = build()

    def edit(grad: np.ndarray) -> np.ndarray:
        return np.sign(grad) * np.sqrt(np.abs(grad))

    expected = by_hand(model, edit=edit)
    results = embgrad.gradients(model, IDS, embgrad.Sum(), at=["word", "layer.-1"], edit={"layer.-1": edit})
    close(results["word"].values, expected["word"])
    close(results["layer.-1"].before, expected["before"])
    close(results["layer.-1"].values, edit(expected["before"]))


@FRAMEWORKS
def test_seed_hidden_gradients_of_values_set_in_the_forward_pass(framework: str) -> None:
    build, by_hand = CASES[framework]
    model = build()
    for value in (lambda states: states * 0 + 0.5, lambda states: states[:, ::-1].copy()):
        expected = by_hand(model, value=value)
        result = embgrad.gradients(model, IDS, embgrad.Sum(), at="layer.-1", override={"layer.-1": value})
        close(result.activations, expected["states"])
        close(result.values, expected["before"])
        close(result.objective, expected["objective"])
        with pytest.raises(embgrad.errors.NoGradientError, match="whose value was overridden"):
            embgrad.gradients(model, IDS, embgrad.Sum(), override={"layer.-1": value})
