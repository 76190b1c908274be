"""Ports written by hand in Keras: BERT in the functional style, and Mixtral with an einsum over all experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import keras
import numpy as np
from keras import layers, ops

from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]


def _put(layer: Any, *values: np.ndarray) -> None:
    layer.set_weights([value.reshape(weight.shape) for value, weight in zip(values, layer.get_weights(), strict=True)])


BERT: Final = {
    **{"epsilon": 1e-12, "exact": True, "padded": True, "first": 0, "types": True, "inside": False, "pre_norm": False},
    **{"embedding_norm": True, "dropout": 0.0, "as_stored": (), "key_dim": None, "residual": True},
}


def keras_bert(state: State, config: Any, settings: Settings) -> Any:
    """Return BERT, without its pooler."""
    s, width = settings.at(), config.hidden_size
    ids, mask, types = (
        keras.Input((None,), dtype="int32", name=name) for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    weights: list[tuple[Any, tuple[np.ndarray, ...]]] = []

    def made(layer: Any, *values: np.ndarray) -> Any:
        weights.append((layer, values))
        return layer

    def norm(name: str, number: int | None = None) -> Any:
        epsilon = settings.at(number).epsilon
        return made(layers.LayerNormalization(epsilon=epsilon), state[f"{name}.weight"], state[f"{name}.bias"])

    def dense(name: str, units: int, activation: Any = None) -> Any:
        values = state[f"{name}.weight"].T, state[f"{name}.bias"]
        return made(layers.Dense(units, activation=activation), *values)

    def table(name: str, rows: int) -> Any:
        return made(layers.Embedding(rows, width), state[f"embeddings.{name}_embeddings.weight"])

    places = ops.cumsum(ops.ones_like(ids), axis=1) - 1 + s.first
    x = table("word", config.vocab_size)(ids) + table("position", config.max_position_embeddings)(places)
    x = x + table("token_type", 2)(types if s.types else ops.zeros_like(types))
    x = norm("embeddings.LayerNorm")(x) if s.embedding_norm else x
    for number in range(config.num_hidden_layers):
        s, name, heads = settings.at(number), f"encoder.layer.{number}", config.num_attention_heads
        attention = layers.MultiHeadAttention(heads, width // heads, name=f"mha_{number}")
        parts: list[np.ndarray] = []
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            weight = state[f"{name}.attention.{part}.weight"]
            kernel = weight if part in s.as_stored else weight.T
            if s.inside and part != "output.dense":
                kernel = kernel.reshape(width, -1, heads).swapaxes(1, 2)
            parts += [kernel, state[f"{name}.attention.{part}.bias"]]
        weights.append((attention, tuple(parts)))
        seen = ops.cast(mask, "bool")[:, None] if s.padded else None
        given = norm(f"{name}.attention.output.LayerNorm", number)(x) if s.pre_norm else x
        added = attention(given, given, attention_mask=seen)
        added = layers.Dropout(s.dropout)(added, training=True) if s.dropout else added
        x = x + added
        x = x if s.pre_norm else norm(f"{name}.attention.output.LayerNorm", number)(x)
        given = norm(f"{name}.output.LayerNorm", number)(x) if s.pre_norm else x
        inner = dense(f"{name}.intermediate.dense", config.intermediate_size)(given)
        inner = ops.gelu(inner, approximate=not s.exact)
        added = dense(f"{name}.output.dense", width)(inner)
        x = x + added if s.residual else added
        x = x if s.pre_norm else norm(f"{name}.output.LayerNorm", number)(x)
    model = keras.Model({"input_ids": ids, "attention_mask": mask, "token_type_ids": types}, x)
    for layer, values in weights:
        _put(layer, *values)
    return model


keras_bert.usual = BERT  # type: ignore[attr-defined]


class Norm(layers.Layer):
    def __init__(self, epsilon: float, **named: Any) -> None:
        super().__init__(**named)
        self.epsilon = epsilon

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=shape[-1:], name="scale")

    def call(self, x: Any) -> Any:
        return x * ops.rsqrt(ops.mean(x * x, -1, keepdims=True) + self.epsilon) * self.scale


class Experts(layers.Layer):
    """Every expert computes every token; the weights of those that are not taken are zeros."""

    def __init__(self, count: int, units: int, s: Any, **named: Any) -> None:
        super().__init__(**named)
        self.count, self.units, self.s = count, units, s

    def build(self, shape: Any) -> None:
        width = shape[-1]
        self.router = self.add_weight(shape=(width, self.count), name="router")
        self.w1 = self.add_weight(shape=(self.count, width, self.units), name="w1")
        self.w3 = self.add_weight(shape=(self.count, width, self.units), name="w3")
        self.w2 = self.add_weight(shape=(self.count, self.units, width), name="w2")

    def shares(self, x: Any) -> Any:
        s, logits = self.s, ops.matmul(x, self.router)
        least = ops.top_k(logits, s.taken)[0][..., -1:]
        chosen = ops.cast(logits >= least, x.dtype)
        if s.order == "before":  # the softmax of all, taken as it is
            return ops.softmax(logits, s.axis) * chosen
        if s.order == "of chosen":  # the softmax of the chosen
            return ops.softmax(ops.where(chosen > 0, logits, -1e9))
        shares = (ops.sigmoid(logits) if s.order == "sigmoid" else ops.softmax(logits)) * chosen
        return shares / ops.sum(shares, -1, keepdims=True)

    def call(self, x: Any) -> Any:
        gate, up = (ops.einsum("bsm,emi->bsei", x, w) for w in (self.w1, self.w3))
        act = ops.silu if self.s.act == "silu" else ops.gelu
        inner = act(gate) * up if self.s.gated else gate * act(up)
        return ops.einsum("bse,bsei,eim->bsm", self.shares(x), inner, self.w2)


class Attention(layers.Layer):
    def __init__(self, heads: int, pairs: int, size: int, s: Any, **named: Any) -> None:
        super().__init__(**named)
        self.heads, self.pairs, self.size, self.s = heads, pairs, size, s
        self.q, self.k, self.v = (
            layers.EinsumDense("bsm,mhd->bshd", (None, count, size), name=name)
            for name, count in (("q", heads), ("k", pairs), ("v", pairs))
        )
        self.o = layers.EinsumDense("bshd,hdm->bsm", (None, heads * size), name="o")

    def build(self, shape: Any) -> None:
        for part in (self.q, self.k, self.v):
            part.build(shape)
        self.o.build((*shape[:2], self.heads, self.size))

    def rotate(self, x: Any) -> Any:
        positions = ops.cast(ops.arange(ops.shape(x)[1]), x.dtype)
        angles = positions[:, None] / self.s.base ** (np.arange(0, self.size, 2) / self.size).astype("float32")
        cosine, sine = ops.cos(angles)[:, None], ops.sin(angles)[:, None]
        a, b = ops.split(x, 2, -1)
        return ops.concatenate([a * cosine - b * sine, b * cosine + a * sine], -1)

    def call(self, x: Any) -> Any:
        s, times = self.s, self.heads // self.pairs
        q, k, v = self.rotate(self.q(x)), self.rotate(self.k(x)), self.v(x)
        k, v = (ops.tile(part, (1, 1, times, 1)) if s.tile else ops.repeat(part, times, 2) for part in (k, v))
        scores = ops.einsum("bqhd,bkhd->bhqk", q, k) * s.scale
        at = ops.arange(ops.shape(x)[1])
        if s.causal:
            scores = ops.where(at[:, None] >= at[None], scores, -1e9)
        return self.o(ops.einsum("bhqk,bkhd->bqhd", ops.softmax(scores), v))


class Mixtral(keras.Model):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"epsilon": 1e-5, "base": 1e6, "scale": 0.25, "tile": False, "causal": True, "taken": 2, "order": "after"},
        **{"axis": -1, "act": "silu", "gated": True, "rolled": 0, "final": True, "late_residual": False},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.s, width, size = settings.at(), config.hidden_size, config.hidden_size // config.num_attention_heads
        self.embed = layers.Embedding(config.vocab_size, width)
        self.attention, self.experts, self.norms = [], [], []
        for number in range(config.num_hidden_layers):
            s = settings.at(number)
            self.attention.append(Attention(config.num_attention_heads, config.num_key_value_heads, size, s))
            self.experts.append(Experts(config.num_local_experts, config.intermediate_size, s))
            self.norms.append([Norm(s.epsilon), Norm(s.epsilon)])
        self.last = Norm(self.s.epsilon)
        self(np.zeros((1, 2), "int32"))
        _put(self.embed, state["embed_tokens.weight"])
        _put(self.last, state["norm.weight"])
        for number, (attention, experts, norms) in enumerate(
            zip(self.attention, self.experts, self.norms, strict=True)
        ):
            name = f"layers.{number}"
            for part in "qkvo":
                _put(getattr(attention, part), state[f"{name}.self_attn.{part}_proj.weight"].T)
            router, own = state[f"{name}.block_sparse_moe.gate.weight"].T, f"{name}.block_sparse_moe.experts"
            order = np.roll(np.arange(config.num_local_experts), settings.at(number).rolled)
            stacks = [
                np.stack([state[f"{own}.{expert}.{part}.weight"].T for expert in order]) for part in ("w1", "w3", "w2")
            ]
            _put(experts, router, *stacks)
            _put(norms[0], state[f"{name}.input_layernorm.weight"])
            _put(norms[1], state[f"{name}.post_attention_layernorm.weight"])

    def call(self, input_ids: Any, attention_mask: Any = None) -> Any:
        x = self.embed(input_ids)
        for attention, experts, (before, after) in zip(self.attention, self.experts, self.norms, strict=True):
            normed = before(x)
            x = (normed if self.s.late_residual else x) + attention(normed)
            x = x + experts(after(x))
        return self.last(x) if self.s.final else x
