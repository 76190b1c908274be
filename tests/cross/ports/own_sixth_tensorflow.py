"""A port written by hand in TensorFlow: SqueezeBERT's classifier, with lookups as products and grouped kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]


class GroupedDense(tf.Module):
    """A convolution of width 1 in groups: kernels (group, input, output)."""

    def __init__(self, state: State, name: str, groups: int, s: Any) -> None:
        super().__init__()
        kernel, part = state[f"{name}.weight"][..., 0], name.rsplit(".layers.", 1)[-1].split(".", 1)[1]
        kernels = kernel.reshape(groups, -1, kernel.shape[1])
        kernels = kernels if part in s.as_stored else kernels.swapaxes(1, 2)
        bias = state[f"{name}.bias"] * np.float32(part not in s.unbiased)
        if s.folded and part == "attention.query":
            kernels, bias = kernels * np.float32(8**-0.5), bias * np.float32(8**-0.5)
        if s.form == "dense":  # one matrix of blocks
            whole = np.zeros((groups, kernels.shape[1], groups, kernels.shape[2]), np.float32)
            whole[range(groups), :, range(groups)] = kernels
            kernels = whole.reshape(1, groups * kernels.shape[1], -1)
        self.kernel, self.bias, self.shuffled = tf.Variable(kernels), tf.Variable(bias), part in s.shuffled

    def __call__(self, x: Any) -> Any:
        groups, given = self.kernel.shape[:2]
        shape = tf.shape(x)[:2]
        if self.shuffled:
            x = tf.einsum("btig->btgi", tf.reshape(x, [*tf.unstack(shape), given, groups]))
        else:
            x = tf.reshape(x, [*tf.unstack(shape), groups, given])
        y = tf.einsum("btgi,gio->btgo", x, self.kernel)
        return tf.reshape(y, [*tf.unstack(shape), self.bias.shape[0]]) + self.bias


class Norm(tf.Module):
    def __init__(self, state: State, name: str, s: Any) -> None:
        super().__init__()
        self.gamma, self.beta, self.eps = (*(tf.Variable(state[f"{name}.{k}"]) for k in ("weight", "bias")), s.eps)

    def __call__(self, x: Any) -> Any:
        mean, variance = tf.nn.moments(x, -1, keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, self.beta, self.gamma, self.eps)


class SqueezeLayer(tf.Module):
    def __init__(self, state: State, name: str, config: Any, s: Any) -> None:
        super().__init__()
        self.heads, self.s = config.num_attention_heads, s
        parts = ("query", "key", "value")
        self.qkv = [GroupedDense(state, f"{name}.attention.{part}", config.q_groups, s) for part in parts]
        self.mixed = GroupedDense(state, f"{name}.post_attention.conv1d", config.post_attention_groups, s)
        self.inner = GroupedDense(state, f"{name}.intermediate.conv1d", config.intermediate_groups, s)
        self.outer = GroupedDense(state, f"{name}.output.conv1d", config.output_groups, s)
        self.first, self.second = (Norm(state, f"{name}.{part}.layernorm", s) for part in ("post_attention", "output"))

    def __call__(self, x: Any, mask: Any) -> Any:
        s, shape = self.s, tf.shape(x)
        split = [shape[0], shape[1], self.heads, x.shape[-1] // self.heads]
        q, k, v = (tf.transpose(tf.reshape(part(x), split), [0, 2, 1, 3]) for part in self.qkv)
        scores = tf.matmul(q, k, transpose_b=True) * (1.0 if s.folded else s.scale_of**-0.5)
        weights = tf.nn.softmax(scores + (1.0 - mask) * -1e9)
        y = tf.reshape(tf.transpose(tf.matmul(weights, v), [0, 2, 1, 3]), shape)
        h = self.first(x + self.mixed(y))
        inner = self.inner(h)
        inner = inner * tf.sigmoid(1.702 * inner) if s.quick else tf.nn.gelu(inner, approximate=False)
        return self.second((x if s.residual == "input" else h) + self.outer(inner))


class GroupedSqueezebert(tf.Module):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"eps": 1e-12, "as_stored": (), "unbiased": (), "shuffled": (), "form": "groups", "scale_of": 8},
        **{"quick": False, "residual": "normed", "masked": True, "types": True, "lookup": "product", "first": 0},
        **{"pooled": "first", "pooler": "tanh", "run": "graph", "folded": False},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.s = s = settings.at()
        own, names = "transformer.embeddings", ("word", "position", "token_type")
        self.tables = [tf.Variable(state[f"{own}.{name}_embeddings.weight"]) for name in names]
        self.norm = Norm(state, f"{own}.LayerNorm", s)
        numbers = range(config.num_hidden_layers)
        self.layers = [SqueezeLayer(state, f"transformer.encoder.layers.{n}", config, settings.at(n)) for n in numbers]
        dense = ("transformer.pooler.dense", "classifier")
        self.dense = [[tf.Variable(state[f"{name}.{kind}"]) for kind in ("weight", "bias")] for name in dense]
        run = s.run
        self.run = self.logits if run == "eager" else tf.function(self.logits, jit_compile=run == "xla")

    def looked_up(self, number: int, ids: Any) -> Any:
        table = self.tables[number]
        if self.s.lookup == "gather":
            return tf.gather(table, ids)
        return tf.einsum("btv,vd->btd", tf.one_hot(ids, table.shape[0]), table)

    def logits(self, ids: Any, mask: Any, types: Any) -> Any:
        s, mask = self.s, tf.cast(mask, tf.float32)
        ids, types = tf.cast(ids, tf.int32), tf.cast(types, tf.int32) * int(s.types)
        places = tf.broadcast_to(tf.range(tf.shape(ids)[1])[None] + s.first, tf.shape(ids))
        x = self.norm(tf.add_n([self.looked_up(n, given) for n, given in enumerate((ids, places, types))]))
        for layer in self.layers:
            x = layer(x, mask[:, None, None] if s.masked else tf.ones([1, 1, 1, 1]))
        (pooler, pooler_bias), (head, head_bias) = self.dense
        pooled = {
            "first": lambda: x[:, 0],
            "last": lambda: x[:, -1],
            "mean": lambda: tf.reduce_sum(x * mask[..., None], 1) / tf.reduce_sum(mask, 1, keepdims=True),
        }[s.pooled]()
        pooled = tf.matmul(pooled, pooler, transpose_b=True) + pooler_bias
        pooled = tf.tanh(pooled) if s.pooler == "tanh" else pooled
        return tf.matmul(pooled, head, transpose_b=True) + head_bias


def called(model: Any, inputs: Any) -> Any:
    """Call a module with ids, mask and types."""
    return model.run(inputs["input_ids"], inputs["attention_mask"], inputs["token_type_ids"])
