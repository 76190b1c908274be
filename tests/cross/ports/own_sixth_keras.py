"""A port written by hand in Keras 3: Nemotron of subclassed layers, whose projections are einsums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import keras
import numpy as np
from keras import layers, ops

from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]


class LayerNorm1P(layers.Layer):
    """A norm that multiplies by one more than its weight."""

    def __init__(self, s: Any, **named: Any) -> None:
        super().__init__(**named)
        self.s = s

    def build(self, shape: Any) -> None:
        self.gamma = self.add_weight(shape=shape[-1:], initializer="zeros", name="gamma")
        self.beta = self.add_weight(shape=shape[-1:], initializer="zeros", name="beta")

    def call(self, x: Any) -> Any:
        x = x - ops.mean(x, -1, keepdims=True) if self.s.centred else x
        unit = x * ops.rsqrt(ops.mean(ops.square(x), -1, keepdims=True) + self.s.eps)
        return unit * (self.gamma + self.s.offset) + self.beta


class PartialRope(layers.Layer):
    """Turn a share of every head, (example, position, head, feature)."""

    def __init__(self, s: Any, **named: Any) -> None:
        super().__init__(**named)
        self.s = s

    def call(self, x: Any) -> Any:
        size = int(x.shape[-1] * self.s.share)
        at = ops.arange(ops.shape(x)[1], dtype="float32") + self.s.first
        rates = ops.power(self.s.base, -ops.arange(0, size, 2, dtype="float32") / size)
        angles = (at[:, None] * rates)[:, None]
        a, b = ops.split(x[..., :size], 2, -1)
        cos, sin = ops.cos(angles), ops.sin(angles)
        return ops.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., size:]], -1)


class NemotronAttention(layers.Layer):
    def __init__(self, config: Any, s: Any, **named: Any) -> None:
        super().__init__(**named)
        self.s, self.times = s, config.num_attention_heads // config.num_key_value_heads
        size, groups = config.head_dim, config.num_key_value_heads
        self.query = layers.EinsumDense("btd,dnh->btnh", (None, config.num_attention_heads, size))
        self.key, self.value = (layers.EinsumDense("btd,dnh->btnh", (None, groups, size)) for _ in range(2))
        self.output_dense = layers.EinsumDense("btnh,nhd->btd", (None, config.hidden_size))
        self.rope = PartialRope(s)

    def repeated(self, x: Any) -> Any:
        return ops.tile(x, (1, 1, self.times, 1)) if self.s.tiled else ops.repeat(x, self.times, axis=2)

    def call(self, x: Any) -> Any:
        s = self.s
        q, k, v = self.rope(self.query(x)), self.repeated(self.rope(self.key(x))), self.repeated(self.value(x))
        at = ops.arange(ops.shape(x)[1])
        seen = at <= at[:, None] + s.ahead
        if s.form == "fused":
            return self.output_dense(ops.dot_product_attention(q, k, v, mask=seen[None, None]))
        q, k, v = (ops.transpose(part, (0, 2, 1, 3)) for part in (q, k, v))
        scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) / ops.sqrt(float(q.shape[-1]))
        if s.masked == "added":
            scores = scores + (1.0 - ops.cast(seen, "float32")) * -1e9
        else:
            scores = ops.where(seen, scores, -float("inf"))
        mixed = ops.matmul(ops.softmax(scores), v)
        return self.output_dense(ops.transpose(mixed, (0, 2, 1, 3)))


class NemotronLayer(layers.Layer):
    def __init__(self, config: Any, s: Any, **named: Any) -> None:
        super().__init__(**named)
        self.s, self.pre, self.mid = s, LayerNorm1P(s), LayerNorm1P(s)
        self.attention = NemotronAttention(config, s)
        self.up, self.down = (
            layers.Dense(config.intermediate_size, use_bias=False),
            layers.Dense(config.hidden_size, use_bias=False),
        )

    def call(self, x: Any) -> Any:
        x = x + self.attention(self.pre(x))
        y = self.up(self.mid(x))
        y = {
            "squared": lambda: ops.square(ops.relu(y)),
            "relu": lambda: ops.relu(y),
            "product": lambda: ops.relu(y) * y,
            "square": lambda: ops.square(y),
        }[self.s.act]()
        return x + self.down(y)


class KerasNemotron(keras.Model):  # type: ignore[misc]
    usual: ClassVar[Mapping[str, Any]] = {
        **{"eps": 1e-5, "offset": 1.0, "folded": False, "centred": True, "share": 0.5, "base": 1e4, "first": 0},
        **{"tiled": False, "ahead": 0, "form": "matmul", "masked": "chosen", "act": "squared", "inside": False},
        **{"reshaped": False, "tied": False},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        s, depth = settings.at(), config.num_hidden_layers
        own = [settings.at(n, **({"offset": 0.0} if s.folded else {})) for n in range(depth)]
        self.table = layers.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = [NemotronLayer(config, own[n]) for n in range(depth)]
        self.norm, self.head = LayerNorm1P(own[-1] if s.folded else s), layers.Dense(config.vocab_size, use_bias=False)
        self(np.zeros((1, 4), "int32"))

        def put(layer: Any, name: str) -> None:
            values = [state[f"{name}.weight"], state.get(f"{name}.bias")]
            is_norm = isinstance(layer, LayerNorm1P)
            values[0] = values[0] + (1.0 if s.folded else 0.0) if is_norm else values[0].T
            for weight, value in zip(layer.weights, values, strict=False):
                weight.assign(value)

        def put_heads(layer: Any, name: str, own: Any) -> None:
            kernel, shape = state[f"{name}.weight"].T, layer.kernel.shape
            if own.inside:
                kernel = kernel.reshape(shape[0], shape[2], shape[1]).swapaxes(1, 2)
            layer.kernel.assign(kernel.reshape(shape))

        self.table.embeddings.assign(state["model.embed_tokens.weight"])
        put(self.norm, "model.norm")
        put(self.head, "model.embed_tokens" if s.tied else "lm_head")
        for n, block in enumerate(self.blocks):
            name, attention = f"model.layers.{n}", block.attention
            for part, layer in (("q", attention.query), ("k", attention.key), ("v", attention.value)):
                put_heads(layer, f"{name}.self_attn.{part}_proj", own[n])
            kernel = state[f"{name}.self_attn.o_proj.weight"]
            attention.output_dense.kernel.assign(
                (kernel if own[n].reshaped else kernel.T).reshape(attention.output_dense.kernel.shape)
            )
            put(block.pre, f"{name}.input_layernorm")
            put(block.mid, f"{name}.post_attention_layernorm")
            put(block.up, f"{name}.mlp.up_proj")
            put(block.down, f"{name}.mlp.down_proj")

    def call(self, input_ids: Any) -> Any:
        x = self.table(input_ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
