"""Points in PyTorch by hand: hooks that make the modules' outputs leaves, and the model is left as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

import embgrad
from tests.benchmarks.points import POOLED, VOCAB, Gradients, Priced, code_of, drawn_ids, loaded_bert, texts

#: The token whose logit a language model's objective is.
TOKEN: Final = 5

#: The objective of a language model, and the same by hand.
LOGIT: Final = (embgrad.Logit(TOKEN, position=-1), lambda outputs: outputs.logits[:, -1, TOKEN].sum())


def bert(layers: int, dim: int) -> Priced:
    model = loaded_bert("torch", layers, dim)
    modules = {"word": model.embeddings.word_embeddings, "embeddings": model.embeddings}
    modules |= _layers(model.encoder.layer)
    return _priced(model, modules, texts, POOLED, lambda outputs: outputs.pooler_output.sum())


def gpt2(layers: int, dim: int) -> Priced:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_layer": layers, "n_embd": dim, "n_head": max(2, dim // 32), "vocab_size": VOCAB}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()
    inner = model.transformer
    modules = {"word": inner.wte, "embeddings": inner.drop, **_layers(inner.h)}
    return _priced(model, modules, lambda *size: embgrad.TokenBatch(drawn_ids(*size)), *LOGIT)


def t5(layers: int, dim: int) -> Priced:
    """Return an encoder and a decoder; the points are the encoder's, whose modules are called first."""
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    heads = max(2, dim // 32)
    sizes = {"num_layers": layers, "d_model": dim, "num_heads": heads, "d_kv": dim // heads, "d_ff": 4 * dim}
    model = T5ForConditionalGeneration(T5Config(**sizes, vocab_size=VOCAB)).eval()
    encoder = model.encoder
    modules = {"word": encoder.embed_tokens, "embeddings": encoder.dropout, **_layers(encoder.block)}

    def batch(examples: int, positions: int) -> embgrad.TokenBatch:
        ids = drawn_ids(examples, positions)
        return embgrad.TokenBatch(ids, np.ones(ids.shape), extras={"decoder_input_ids": ids[:, ::-1].copy()})

    return _priced(model, modules, batch, *LOGIT)


MODES = {"PyTorch": bert, "PyTorch, GPT-2": gpt2, "PyTorch, T5": t5}


def _layers(layers: Any) -> dict[str, Any]:
    return {"layer.0": layers[0], "layer.-1": layers[-1]}


def _priced(
    model: Any,
    modules: Mapping[str, Any],
    batch: Callable[[int, int], embgrad.TokenBatch],
    objective: embgrad.Objective,
    total: Callable[[Any], Any],
) -> Priced:
    def by_hand(batch: embgrad.TokenBatch, points: Sequence[str]) -> Gradients:
        return lambda: _by_hook(model, {point: modules[point] for point in points}, batch, total)

    return Priced(model, batch, objective, by_hand, code_of(type(model).forward))


def _by_hook(
    model: Any, modules: Mapping[str, Any], batch: embgrad.TokenBatch, total: Callable[[Any], Any]
) -> dict[str, np.ndarray]:
    inputs = {name: torch.tensor(value) for name, value in batch.inputs().items()}
    reached: dict[str, Any] = {}

    def hook(point: str) -> Callable[..., Any]:
        def at_output(module: Any, arguments: Any, output: Any) -> Any:
            if point in reached:
                return None
            tensor, *rest = output if isinstance(output, tuple) else (output,)
            reached[point] = as_leaf(tensor)
            return (reached[point], *rest) if isinstance(output, tuple) else reached[point]

        return at_output

    handles = [module.register_forward_hook(hook(point)) for point, module in modules.items()]
    model.requires_grad_(False)
    try:
        pulled = torch.autograd.grad(total(model(**inputs)), [reached[point] for point in modules])
    finally:
        model.requires_grad_(True)
        for handle in handles:
            handle.remove()
    return {point: gradient.numpy() for point, gradient in zip(modules, pulled, strict=True)}


def as_leaf(tensor: Any) -> Any:
    """Return a tensor from which the graph begins, or goes on where it has begun before."""
    return tensor if tensor.requires_grad else tensor.detach().requires_grad_()
