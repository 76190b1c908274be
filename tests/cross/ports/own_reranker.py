"""A port written by hand in Keras 3: BERT that scores pairs of texts, as a subclassed model with layers of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import keras
import numpy as np
from keras import layers, ops

from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]


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
        size = x.shape[-1] // self.heads
        shape = (
            (batch, length, self.heads, 3, size) if self.s.split == "by head" else (batch, length, 3, self.heads, size)
        )
        fused, axis = ops.reshape(self.qkv(x), shape), 3 if self.s.split == "by head" else 2
        q, k, v = (ops.take(fused, number, axis=axis) for number in range(3))
        scores = ops.einsum("bqhd,bkhd->bhqk", q, k) / self.s.over
        mixed = ops.einsum("bhqk,bkhd->bqhd", ops.softmax(scores + bias, axis=-1), v)
        return self.out(ops.reshape(mixed, (batch, length, width)))


class EncoderBlock(layers.Layer):
    def __init__(self, heads: int, inner: int, s: Any, **named: Any) -> None:
        super().__init__(**named)
        self.attention = SelfAttention(heads, s)
        self.ln_1, self.ln_2 = (layers.LayerNormalization(epsilon=s.epsilon) for _ in range(2))
        self.inner, self.s = inner, s

    def build(self, shape: Any) -> None:
        self.up, self.down = layers.Dense(self.inner), layers.Dense(shape[-1])
        for part in (self.attention, self.ln_1, self.ln_2, self.up):
            part.build(shape)
        self.down.build((*shape[:-1], self.inner))

    def call(self, x: Any, bias: Any) -> Any:
        x = self.ln_1(x + self.attention(x, bias))
        act = {"exact": lambda y: ops.gelu(y, approximate=False), "gelu": ops.gelu, "relu": ops.relu}[self.s.act]
        return self.ln_2(x + self.down(act(self.up(x))))


class Reranker(keras.Model):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"split": "whole", "over": 8**0.5, "epsilon": 1e-12, "act": "exact", "least": -1e9, "mask": "padding"},
        **{"types": "given", "places": "all", "pooling": "first", "pooler": "tanh", "score": "raw", "out_bias": True},
        **{"pooler_as_stored": False, "embedding_norm": True},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        s = self.s = settings.at()
        width, counts = config.hidden_size, (config.vocab_size, config.max_position_embeddings, config.type_vocab_size)
        self.word, self.place, self.segment = (layers.Embedding(count, width) for count in counts)
        self.norm = layers.LayerNormalization(epsilon=s.epsilon)
        heads, inner = config.num_attention_heads, config.intermediate_size
        self.blocks = [EncoderBlock(heads, inner, settings.at(n)) for n in range(config.num_hidden_layers)]
        self.pooler, self.scorer = layers.Dense(width), layers.Dense(1, use_bias=s.out_bias)
        self(dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), np.zeros((1, 4), "int32")))
        if s.pooler != "skipped":
            kernel = state["bert.pooler.dense.weight"]
            self.pooler.set_weights([kernel if s.pooler_as_stored else kernel.T, state["bert.pooler.dense.bias"]])
        self.scorer.set_weights([state["classifier.weight"].T, state["classifier.bias"]][: 1 + s.out_bias])
        base = "bert.embeddings"
        for layer, name in ((self.word, "word"), (self.place, "position"), (self.segment, "token_type")):
            layer.set_weights([state[f"{base}.{name}_embeddings.weight"]])
        if s.embedding_norm:
            self.norm.set_weights([state[f"{base}.LayerNorm.weight"], state[f"{base}.LayerNorm.bias"]])

        def kernels(name: str) -> list[np.ndarray]:
            return [state[f"{name}.weight"].T, state[f"{name}.bias"]]

        for number, block in enumerate(self.blocks):
            name = f"bert.encoder.layer.{number}"
            parts = [kernels(f"{name}.attention.self.{part}") for part in ("query", "key", "value")]
            block.attention.qkv.set_weights([np.concatenate(values, -1) for values in zip(*parts, strict=True)])
            block.attention.out.set_weights(kernels(f"{name}.attention.output.dense"))
            for norm, theirs in ((block.ln_1, "attention.output"), (block.ln_2, "output")):
                norm.set_weights([state[f"{name}.{theirs}.LayerNorm.{kind}"] for kind in ("weight", "bias")])
            block.up.set_weights(kernels(f"{name}.intermediate.dense"))
            block.down.set_weights(kernels(f"{name}.output.dense"))

    def call(self, inputs: Any) -> Any:
        s, ids, mask, types = self.s, *(inputs[name] for name in ("input_ids", "attention_mask", "token_type_ids"))
        places = ops.arange(ops.shape(ids)[1])[None] + ops.zeros_like(ids)
        if s.places == "each":  # the second text begins again
            places = places - types * ops.sum((1 - types) * mask, axis=1, keepdims=True)
            places = ops.maximum(places, 0)
        kinds = {"given": types, "none": ops.zeros_like(types), "turned": 1 - types}
        x = self.word(ids) + self.place(places) + self.segment(kinds[s.types])
        x = self.norm(x) if s.embedding_norm else x
        real = ops.cast(mask, x.dtype)[:, None, None]
        bias = {"padding": (1 - real) * s.least, "sign": real * s.least, "none": 0 * real}[s.mask]
        for block in self.blocks:
            x = block(x, bias)
        if s.pooling == "first":
            x = x[:, 0]
        elif s.pooling == "mean":
            weights = ops.cast(mask, x.dtype)[..., None]
            x = ops.sum(x * weights, 1) / ops.sum(weights, 1)
        elif s.pooling == "last":
            x = x[:, -1]
        if s.pooler != "skipped":
            x = self.pooler(x)
            x = ops.tanh(x) if s.pooler == "tanh" else x
        score = self.scorer(x)
        return ops.sigmoid(score) if s.score == "sigmoid" else score
