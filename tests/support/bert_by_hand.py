"""BERT as its paper has it, in NumPy, with weights by Hugging Face's names: what `load_bert` must give in any framework.

Complex numbers pass through it, so that a tiny imaginary step in the words' rows gives the derivative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from embgrad.checkpoints.load_bert import bert_names


def _erf(x: np.ndarray) -> np.ndarray:
    """The error function, to the first order in an imaginary part."""
    real = np.real(x)
    values = np.vectorize(math.erf, otypes=[np.float64])(real)
    return values + 1j * np.imag(x) * 2 / math.sqrt(math.pi) * np.exp(-(real**2)) if np.iscomplexobj(x) else values


#: By Hugging Face's names.
ACTIVATIONS: Final[Mapping[str, Callable[[np.ndarray], np.ndarray]]] = {
    "gelu": lambda x: x * 0.5 * (1 + _erf(x / math.sqrt(2))),
    "gelu_new": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.where(np.real(x) > 0, x, 0),
}


def random_weights(config: Mapping[str, Any], random: np.random.Generator) -> dict[str, np.ndarray]:
    """All weights of a BERT of that configuration, float32."""
    units, inner = config["hidden_size"], config["intermediate_size"]
    rows = {"word": "vocab_size", "position": "max_position_embeddings", "token_type": "type_vocab_size"}
    weights = {}
    for name in bert_names(config["num_hidden_layers"]):
        if "_embeddings." in name:
            shape: tuple[int, ...] = (config[rows[name.split(".")[1].removesuffix("_embeddings")]], units)
        elif name.endswith("bias") or "LayerNorm" in name:
            shape = (inner if "intermediate" in name else units,)
        else:
            wide, narrow = ("intermediate" in name), (".output.dense" in name and "attention" not in name)
            shape = (inner if wide else units, inner if narrow else units)
        weights[name] = random.normal(scale=0.5, size=shape).astype(np.float32)
    return weights


def bert_by_hand(
    weights: Mapping[str, np.ndarray], config: Mapping[str, Any], words: np.ndarray, mask: np.ndarray, types: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The last layer's output and the pooler's, from the words' rows on.

    Args:
        words: shape (…, example, position, dim).
        mask: shape (example, position), 1 where a position is real.
        types: likewise, rows of the table of types.
    """
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    heads, wide = config["num_attention_heads"], config["hidden_size"] // config["num_attention_heads"]
    act = ACTIVATIONS[config["hidden_act"]]

    def dense(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + config["layer_norm_eps"])
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    def split(x: np.ndarray) -> np.ndarray:
        return x.reshape(*x.shape[:-1], heads, wide).swapaxes(-2, -3)

    places = w["embeddings.position_embeddings.weight"][: words.shape[-2]]
    x = norm(words + places + w["embeddings.token_type_embeddings.weight"][types], "embeddings.LayerNorm")
    for layer in (f"encoder.layer.{number}" for number in range(config["num_hidden_layers"])):
        q, k, v = (split(dense(x, f"{layer}.attention.self.{part}")) for part in ("query", "key", "value"))
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(wide) + np.where(mask, 0, -1e9)[:, None, None]
        scores = np.exp(scores - np.real(scores).max(-1, keepdims=True))
        mixed = (scores / scores.sum(-1, keepdims=True) @ v).swapaxes(-2, -3).reshape(x.shape)
        x = norm(x + dense(mixed, f"{layer}.attention.output.dense"), f"{layer}.attention.output.LayerNorm")
        inner = dense(act(dense(x, f"{layer}.intermediate.dense")), f"{layer}.output.dense")
        x = norm(x + inner, f"{layer}.output.LayerNorm")
    return x, np.tanh(dense(x[..., 0, :], "pooler.dense"))
