"""Ports written by hand in Keras 3: BERT in the functional style, and subclassed models, a reranker and Mixtral."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import keras
import numpy as np
from keras import layers, ops

from tests.cross.ports.by_hand import KINDS, PARTS, TABLES, State
from tests.cross.ports.own_settings import Settings

# BERT in the functional style


def put(layer: Any, *values: np.ndarray) -> None:
    layer.set_weights([value.reshape(weight.shape) for value, weight in zip(values, layer.get_weights(), strict=True)])


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
        layer = layers.LayerNormalization(epsilon=settings.at(number).epsilon)
        return made(layer, *(state[f"{name}.{kind}"] for kind in KINDS))

    def dense(name: str, units: int) -> Any:
        return made(layers.Dense(units), state[f"{name}.weight"].T, state[f"{name}.bias"])

    def table(name: str, rows: int) -> Any:
        return made(layers.Embedding(rows, width), state[f"embeddings.{name}_embeddings.weight"])

    places = ops.cumsum(ops.ones_like(ids), axis=1) - 1 + s.first
    x = table("word", config.vocab_size)(ids) + table("position", config.max_position_embeddings)(places)
    x = x + table("token_type", 2)(types if s.types else ops.zeros_like(types))
    x = norm("embeddings.LayerNorm")(x)
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
        added = attention(x, x, attention_mask=seen)
        added = layers.Dropout(s.dropout)(added, training=True) if s.dropout else added
        x = norm(f"{name}.attention.output.LayerNorm", number)(x + added)
        inner = dense(f"{name}.intermediate.dense", config.intermediate_size)(x)
        added = dense(f"{name}.output.dense", width)(ops.gelu(inner, approximate=not s.exact))
        x = norm(f"{name}.output.LayerNorm", number)(x + added)
    model = keras.Model({"input_ids": ids, "attention_mask": mask, "token_type_ids": types}, x)
    for layer, values in weights:
        put(layer, *values)
    return model


keras_bert.usual = {  # type: ignore[attr-defined]
    **{"epsilon": 1e-12, "exact": True, "padded": True, "first": 0, "types": True, "inside": False},
    **{"dropout": 0.0, "as_stored": ()},
}


# BERT that scores pairs of texts


class SelfAttention(layers.Layer):
    """Attention with one matrix for queries, keys and values."""

    def __init__(self, heads: int, s: Any, **named: Any) -> None:
        super().__init__(**named)
        self.heads, self.s = heads, s

    def build(self, shape: Any) -> None:
        width = shape[-1]
        self.qkv = layers.Dense(3 * width, name="qkv")
        self.out = layers.Dense(width, name="out")
        self.qkv.build(shape)
        self.out.build(shape)

    def call(self, x: Any, bias: Any) -> Any:
        batch, length, width = ops.shape(x)
        axes, axis = ((self.heads, 3), 3) if self.s.split == "by head" else ((3, self.heads), 2)
        fused = ops.reshape(self.qkv(x), (batch, length, *axes, x.shape[-1] // self.heads))
        q, k, v = (ops.take(fused, number, axis=axis) for number in range(3))
        scores = ops.einsum("bqhd,bkhd->bhqk", q, k) / 8**0.5
        mixed = ops.einsum("bhqk,bkhd->bqhd", ops.softmax(scores + bias, axis=-1), v)
        return self.out(ops.reshape(mixed, (batch, length, width)))


class EncoderBlock(layers.Layer):
    def __init__(self, heads: int, inner: int, s: Any, **named: Any) -> None:
        super().__init__(**named)
        self.attention = SelfAttention(heads, s)
        self.ln_1, self.ln_2 = (layers.LayerNormalization(epsilon=1e-12) for _ in range(2))
        self.inner = inner

    def build(self, shape: Any) -> None:
        self.up, self.down = layers.Dense(self.inner), layers.Dense(shape[-1])
        for part in (self.attention, self.ln_1, self.ln_2, self.up):
            part.build(shape)
        self.down.build((*shape[:-1], self.inner))

    def call(self, x: Any, bias: Any) -> Any:
        x = self.ln_1(x + self.attention(x, bias))
        return self.ln_2(x + self.down(ops.gelu(self.up(x), approximate=False)))


class Reranker(keras.Model):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"split": "whole", "mask": "padding", "types": "given", "places": "all", "pooling": "first"},
        **{"pooler": "tanh", "score": "raw"},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        s = self.s = settings.at()
        width, counts = config.hidden_size, (config.vocab_size, config.max_position_embeddings, config.type_vocab_size)
        self.word, self.place, self.segment = (layers.Embedding(count, width) for count in counts)
        self.norm = layers.LayerNormalization(epsilon=1e-12)
        heads, inner = config.num_attention_heads, config.intermediate_size
        self.blocks = [EncoderBlock(heads, inner, settings.at(n)) for n in range(config.num_hidden_layers)]
        self.pooler, self.scorer = layers.Dense(width), layers.Dense(1)
        self(dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), np.zeros((1, 4), "int32")))

        def kernels(name: str) -> list[np.ndarray]:
            return [state[f"{name}.weight"].T, state[f"{name}.bias"]]

        if s.pooler != "skipped":
            put(self.pooler, *kernels("bert.pooler.dense"))
        put(self.scorer, *kernels("classifier"))
        for layer, name in zip((self.word, self.place, self.segment), TABLES, strict=True):
            put(layer, state[f"bert.embeddings.{name}_embeddings.weight"])
        put(self.norm, *(state[f"bert.embeddings.LayerNorm.{kind}"] for kind in KINDS))
        for number, block in enumerate(self.blocks):
            name = f"bert.encoder.layer.{number}"
            parts = [kernels(f"{name}.attention.self.{part}") for part in PARTS]
            put(block.attention.qkv, *(np.concatenate(values, -1) for values in zip(*parts, strict=True)))
            put(block.attention.out, *kernels(f"{name}.attention.output.dense"))
            for norm, theirs in ((block.ln_1, "attention.output"), (block.ln_2, "output")):
                put(norm, *(state[f"{name}.{theirs}.LayerNorm.{kind}"] for kind in KINDS))
            put(block.up, *kernels(f"{name}.intermediate.dense"))
            put(block.down, *kernels(f"{name}.output.dense"))

    def call(self, inputs: Any) -> Any:
        s, ids, mask, types = self.s, *(inputs[name] for name in ("input_ids", "attention_mask", "token_type_ids"))
        places = ops.arange(ops.shape(ids)[1])[None] + ops.zeros_like(ids)
        if s.places == "each":  # the second text begins again
            places = places - types * ops.sum((1 - types) * mask, axis=1, keepdims=True)
            places = ops.maximum(places, 0)
        kinds = {"given": types, "none": ops.zeros_like(types), "turned": 1 - types}
        x = self.norm(self.word(ids) + self.place(places) + self.segment(kinds[s.types]))
        real = ops.cast(mask, x.dtype)[:, None, None]
        bias = (real if s.mask == "sign" else 1 - real) * -1e9
        for block in self.blocks:
            x = block(x, bias)
        weights = ops.cast(mask, x.dtype)[..., None]
        x = ops.sum(x * weights, 1) / ops.sum(weights, 1) if s.pooling == "mean" else x[:, 0]
        if s.pooler != "skipped":
            x = self.pooler(x)
            x = ops.tanh(x) if s.pooler == "tanh" else x
        score = self.scorer(x)
        return ops.sigmoid(score) if s.score == "sigmoid" else score


# Mixtral with an einsum over all experts


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
        inner = ops.silu(gate) * up if self.s.gated else gate * ops.silu(up)
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
        scores = ops.einsum("bqhd,bkhd->bhqk", q, k) * 0.25
        at = ops.arange(ops.shape(x)[1])
        scores = ops.where(at[:, None] >= at[None], scores, -1e9)
        return self.o(ops.einsum("bhqk,bkhd->bqhd", ops.softmax(scores), v))


class Mixtral(keras.Model):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"epsilon": 1e-5, "base": 1e6, "tile": False, "taken": 2, "order": "after", "axis": -1},
        **{"gated": True, "rolled": 0},
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
        put(self.embed, state["embed_tokens.weight"])
        put(self.last, state["norm.weight"])
        for number, (attention, experts, norms) in enumerate(
            zip(self.attention, self.experts, self.norms, strict=True)
        ):
            name = f"layers.{number}"
            for part in "qkvo":
                put(getattr(attention, part), state[f"{name}.self_attn.{part}_proj.weight"].T)
            router, own = state[f"{name}.block_sparse_moe.gate.weight"].T, f"{name}.block_sparse_moe.experts"
            order = np.roll(np.arange(config.num_local_experts), settings.at(number).rolled)
            stacks = [
                np.stack([state[f"{own}.{expert}.{part}.weight"].T for expert in order]) for part in ("w1", "w3", "w2")
            ]
            put(experts, router, *stacks)
            put(norms[0], state[f"{name}.input_layernorm.weight"])
            put(norms[1], state[f"{name}.post_attention_layernorm.weight"])

    def call(self, input_ids: Any, attention_mask: Any = None) -> Any:
        x = self.embed(input_ids)
        for attention, experts, (before, after) in zip(self.attention, self.experts, self.norms, strict=True):
            x = x + attention(before(x))
            x = x + experts(after(x))
        return self.last(x)
