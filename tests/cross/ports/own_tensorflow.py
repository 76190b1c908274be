"""Ports written by hand in TensorFlow: ALBERT of `tf.Module` and `tf.Variable`, a tagger of ELECTRA's with Keras 2 layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
import tf_keras as keras

from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]


class Dense(tf.Module):
    def __init__(self, kernel: np.ndarray, bias: np.ndarray | None) -> None:
        super().__init__()
        self.kernel = tf.Variable(kernel)
        self.bias = None if bias is None else tf.Variable(bias)

    def __call__(self, x: Any) -> Any:
        y = tf.matmul(x, self.kernel)
        return y if self.bias is None else y + self.bias


class Norm(tf.Module):
    def __init__(self, state: State, name: str, epsilon: float) -> None:
        super().__init__()
        self.gamma, self.beta = tf.Variable(state[f"{name}.weight"]), tf.Variable(state[f"{name}.bias"])
        self.epsilon = epsilon

    def __call__(self, x: Any) -> Any:
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, self.beta, self.gamma, self.epsilon)


class AlbertLayer(tf.Module):
    def __init__(self, state: State, name: str, heads: int, s: Any) -> None:
        super().__init__()
        self.heads, self.s = heads, s

        def dense(part: str) -> Dense:
            kernel = state[f"{name}.{part}.weight"]
            bias = None if part in s.unbiased else state[f"{name}.{part}.bias"]
            return Dense(kernel if part in s.as_stored else kernel.T, bias)

        self.query, self.key, self.value, self.project = (
            dense(f"attention.{part}") for part in ("query", "key", "value", "dense")
        )
        self.inner, self.outer = dense("ffn"), dense("ffn_output")
        self.attention_norm = Norm(state, f"{name}.attention.LayerNorm", s.epsilon)
        self.norm = Norm(state, f"{name}.full_layer_layer_norm", s.epsilon)

    def split(self, x: Any) -> Any:
        shape = tf.shape(x)
        return tf.transpose(tf.reshape(x, [shape[0], shape[1], self.heads, -1]), [0, 2, 1, 3])

    def __call__(self, x: Any, mask: Any) -> Any:
        s = self.s
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = tf.matmul(q, k, transpose_b=True) * s.scale
        real = tf.cast(mask[:, None, None, :], x.dtype)
        if s.mask == "added":
            scores += (1.0 - real) * -10000.0
        elif s.mask == "times":
            scores *= real
        elif s.mask == "where":
            scores = tf.where(real > 0, scores, scores.dtype.min)
        mixed = tf.transpose(tf.matmul(tf.nn.softmax(scores), v), [0, 2, 1, 3])
        mixed = self.project(tf.reshape(mixed, tf.shape(x)))
        mixed = tf.nn.dropout(mixed, s.dropout) if s.dropout else mixed
        x = self.attention_norm(x + mixed)
        y = self.inner(x)
        y = self.outer(tf.nn.gelu(y, approximate=s.tanh))
        return self.norm(x + y if s.residual else y)


class Albert(tf.Module):
    """ALBERT without its pooler."""

    usual: ClassVar[Mapping[str, Any]] = {
        **{"epsilon": 1e-12, "tanh": True, "unbiased": (), "as_stored": (), "scale": 8**-0.5, "mask": "added"},
        **{"dropout": 0.0, "residual": True, "depth": 3, "types": True, "first": 0, "map_bias": True, "shared": True},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        s = self.s = settings.at()
        self.words, self.positions, self.types = (
            tf.Variable(state[f"embeddings.{name}_embeddings.weight"]) for name in ("word", "position", "token_type")
        )
        self.norm = Norm(state, "embeddings.LayerNorm", s.epsilon)
        own = "encoder.embedding_hidden_mapping_in"
        self.mapping = Dense(state[f"{own}.weight"].T, state[f"{own}.bias"] if s.map_bias else None)
        own = "encoder.albert_layer_groups.0.albert_layers.0"
        count = 1 if s.shared else s.depth
        self.layers = [AlbertLayer(state, own, config.num_attention_heads, s) for _ in range(count)]

    def __call__(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
        s = self.s
        types = token_type_ids if s.types else tf.zeros_like(token_type_ids)
        places = tf.range(tf.shape(input_ids)[1]) + s.first
        x = tf.gather(self.words, input_ids) + tf.gather(self.positions, places) + tf.gather(self.types, types)
        x = self.mapping(self.norm(x))
        for number in range(s.depth):
            x = self.layers[number % len(self.layers)](x, attention_mask)
        return x


class Block(keras.layers.Layer):  # type: ignore[misc]
    def __init__(self, width: int, heads: int, inner: int, s: Any) -> None:
        super().__init__()
        self.s = s
        self.mha = keras.layers.MultiHeadAttention(heads, s.key_dim or width // heads)
        self.add_norm, self.out_norm = (keras.layers.LayerNormalization(epsilon=s.epsilon) for _ in range(2))
        self.fc1 = keras.layers.Dense(
            inner, activation=s.act or (lambda x: keras.activations.gelu(x, approximate=False))
        )
        self.fc2 = keras.layers.Dense(width)

    def call(self, x: Any, mask: Any) -> Any:
        s = self.s
        seen = {"keys": mask[:, None, :], "queries": mask[:, :, None], "none": None}[s.mask]
        x = self.add_norm(x + self.mha(x, x, attention_mask=seen, use_causal_mask=s.causal))
        return self.out_norm(x + self.fc2(self.fc1(x)))


def tanh_gelu(x: Any) -> Any:
    """Return GELU as Google's BERT had it for TPUs."""
    return keras.activations.gelu(x, approximate=True)


class Tagger(keras.Model):  # type: ignore[misc]
    """ELECTRA with a class for each token."""

    usual: ClassVar[Mapping[str, Any]] = {
        **{"epsilon": 1e-12, "act": None, "mask": "keys", "causal": False, "key_dim": None, "inside": False,
            "stored": ()},
        **{"map_bias": True, "types": True, "first": 0, "logits": "raw", "out_bias": True},
    }  # fmt: skip

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        s = self.s = settings.at()
        narrow, width, heads = config.embedding_size, config.hidden_size, config.num_attention_heads
        counts = config.vocab_size, config.max_position_embeddings, config.type_vocab_size
        self.words, self.places, self.types = (keras.layers.Embedding(count, narrow) for count in counts)
        self.norm = keras.layers.LayerNormalization(epsilon=s.epsilon)
        self.mapping = keras.layers.Dense(width, use_bias=s.map_bias)
        sizes = width, heads, config.intermediate_size
        self.blocks = [Block(*sizes, settings.at(number)) for number in range(config.num_hidden_layers)]
        self.head = keras.layers.Dense(config.num_labels, use_bias=s.out_bias)
        ids = tf.zeros((1, 3), tf.int32)
        self({"input_ids": ids, "attention_mask": ids + 1, "token_type_ids": ids})

        def put(layer: Any, *values: np.ndarray) -> None:
            kept = values[: len(layer.weights)]
            layer.set_weights([value.reshape(weight.shape) for value, weight in zip(kept, layer.weights, strict=True)])

        def linear(name: str) -> tuple[np.ndarray, np.ndarray]:
            return state[f"{name}.weight"].T, state[f"{name}.bias"]

        def norm(name: str) -> tuple[np.ndarray, np.ndarray]:
            return state[f"{name}.weight"], state[f"{name}.bias"]

        put(self.words, state["electra.embeddings.word_embeddings.weight"])
        put(self.places, state["electra.embeddings.position_embeddings.weight"])
        put(self.types, state["electra.embeddings.token_type_embeddings.weight"])
        put(self.norm, *norm("electra.embeddings.LayerNorm"))
        put(self.mapping, *linear("electra.embeddings_project"))
        put(self.head, *linear("classifier"))
        for number, block in enumerate(self.blocks):
            own, s = f"electra.encoder.layer.{number}", settings.at(number)
            values: list[np.ndarray] = []
            for part in ("self.query", "self.key", "self.value", "output.dense"):
                kernel, bias = linear(f"{own}.attention.{part}")
                kernel = kernel.T if part in s.stored else kernel
                if s.inside and part != "output.dense":
                    kernel = kernel.reshape(width, -1, heads).swapaxes(1, 2)
                    bias = bias.reshape(-1, heads).T
                values += [kernel, bias]
            put(block.mha, *values)
            put(block.add_norm, *norm(f"{own}.attention.output.LayerNorm"))
            put(block.fc1, *linear(f"{own}.intermediate.dense"))
            put(block.fc2, *linear(f"{own}.output.dense"))
            put(block.out_norm, *norm(f"{own}.output.LayerNorm"))

    def call(self, inputs: Any) -> Any:
        s, ids, mask, types = self.s, *(inputs[name] for name in ("input_ids", "attention_mask", "token_type_ids"))
        x = self.words(ids) + self.places(tf.range(tf.shape(ids)[1])[None] + s.first)
        x = x + self.types(types if s.types else tf.zeros_like(types))
        x = self.mapping(self.norm(x))
        for block in self.blocks:
            x = block(x, mask)
        logits = self.head(x)
        return tf.nn.softmax(logits) if s.logits == "softmax" else logits
