"""Ports written by hand in Keras 3: a bidirectional LSTM, a GRU and an average of words, mostly of Keras's own layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import keras
import numpy as np
from keras import layers, ops

from tests.cross.ports.by_hand import State
from tests.cross.ports.own_settings import Settings


def dense(state: State, name: str, **options: Any) -> Any:
    """Return a dense layer with the weights of a name."""
    kernel = state[f"{name}.weight"].T
    made = layers.Dense(kernel.shape[1], name=name, **options)
    made.build((None, kernel.shape[0]))
    made.set_weights([kernel, state[f"{name}.bias"]])
    return made


def table(state: State, name: str) -> Any:
    """Return an embedding with the weight of a name."""
    made = layers.Embedding(*state[f"{name}.weight"].shape, name=name)
    made.build((None, None))
    made.set_weights([state[f"{name}.weight"]])
    return made


def gated(state: State, name: str, s: Any) -> tuple[np.ndarray, ...]:
    """Return the kernel, the recurrent kernel and both biases of a recurrent layer, with the gates in Keras's order."""

    def blocks(kind: str) -> list[np.ndarray]:
        parts = np.split(state[name.replace("*", kind)], len(s.gates))
        return [parts[gate] for gate in s.gates]

    recurrent = blocks("weight_hh")
    across = np.concatenate(recurrent if s.as_stored else [block.T for block in recurrent], 1)
    return np.concatenate(blocks("weight_ih")).T, across, *(np.concatenate(blocks(f"bias_{of}")) for of in ("ih", "hh"))


class KerasBiLstm(keras.Model):  # type: ignore[misc]
    usual: ClassVar[Mapping[str, Any]] = {
        **{"form": "layer", "gates": (0, 1, 2, 3), "as_stored": False, "hidden_bias": 1.0, "exchanged": False},
        **{"gate": "sigmoid", "turned_back": True, "backwards": True, "mask": "given", "pooled": "mean"},
        **{"unroll": False},
    }

    def __init__(self, state: State, _: Any, settings: Settings) -> None:
        super().__init__()
        self.s, self.words, self.head = settings.at(), table(state, "words"), dense(state, "head")
        self.own, self.sides = [settings.at(n) for n in range(2)], []
        for n, own in enumerate(self.own):
            of_both = [self.values(state, f"lstm.*_l{n}{side}", own) for side in ("", "_reverse")]
            given, units = of_both[0][0].shape[0], of_both[0][1].shape[0]
            both = [self.side(units, own, on) for on in (False, own.backwards)]
            sides = both if own.form == "apart" else [layers.Bidirectional(both[0])]
            for layer in sides:
                layer.build((None, 16, given))
            of_both = of_both[::-1] if own.exchanged else of_both
            for layer, values in zip(sides, of_both if len(sides) == 2 else [of_both[0] + of_both[1]], strict=True):
                layer.set_weights(values)
            self.sides.append(sides)

    def side(self, units: int, s: Any, backwards: bool) -> Any:
        """Return the layer of a direction."""
        options = {"return_sequences": True, "go_backwards": backwards and s.form == "apart"}
        if s.form == "cells":
            return layers.RNN(layers.LSTMCell(units, recurrent_activation=s.gate), **options)
        return layers.LSTM(units, recurrent_activation=s.gate, unroll=s.unroll, **options)

    def values(self, state: State, name: str, s: Any) -> list[np.ndarray]:
        kernel, recurrent, bias, other = gated(state, name, s)
        return [kernel, recurrent, bias + s.hidden_bias * other]

    def call(self, input_ids: Any, attention_mask: Any) -> Any:
        s, x, real = self.s, self.words(input_ids), ops.cast(attention_mask, "bool")
        seen = {"given": real, "none": None, "words": ops.not_equal(input_ids, 1)}[s.mask]
        for own, sides in zip(self.own, self.sides, strict=True):
            parts = [side(x, mask=seen) for side in sides]
            if own.form == "apart" and own.turned_back and own.backwards:
                parts[1] = ops.flip(parts[1], 1)
            x = ops.concatenate(parts, -1)
        shares = ops.cast(real, "float32")[..., None]
        return self.head(ops.mean(x, 1) if s.pooled == "all" else ops.sum(x * shares, 1) / ops.sum(shares, 1))


class KerasGru(keras.Model):  # type: ignore[misc]
    usual: ClassVar[Mapping[str, Any]] = {
        **{"form": "layer", "gates": (1, 0, 2), "as_stored": False, "bias": "both", "reset_after": True},
        **{"act": "tanh", "update_turned": False, "tied": False, "depth": 2},
    }

    def __init__(self, state: State, _: Any, settings: Settings) -> None:
        super().__init__()
        self.s, self.words, self.head = settings.at(), table(state, "words"), dense(state, "head")
        self.own, self.parts = [settings.at(n) for n in range(self.s.depth)], []
        for n, s in enumerate(self.own):
            kernel, recurrent, bias, other = gated(state, f"gru.*_l{n}", s)
            merged = {"both": (bias, other), "merged": (bias + other, 0 * other), "input": (bias, 0 * other)}
            biases = {**merged, "hidden": (0 * bias, other)}[s.bias]
            part = self.part(len(recurrent), s)
            if s.form == "steps":
                part = [layers.Dense(3 * len(recurrent), name=f"{name}_{n}") for name in ("input", "hidden")]
                for layer, values in zip(part, zip((kernel, recurrent), biases, strict=True), strict=True):
                    layer.build((None, len(values[0])))
                    layer.set_weights(values)
            else:
                part.build((None, 16, len(kernel)))
                part.set_weights([kernel, recurrent, np.stack(biases) if s.reset_after else sum(biases)])
            self.parts.append(part)

    def part(self, units: int, s: Any) -> Any:
        options = {"activation": s.act, "recurrent_activation": "sigmoid", "reset_after": s.reset_after}
        if s.form == "cells":
            return layers.RNN(layers.GRUCell(units, **options), return_sequences=True)
        return layers.GRU(units, **options, return_sequences=True, unroll=s.form == "unrolled")

    def stepped(self, parts: Any, x: Any, s: Any) -> Any:
        """Return the states of a loop over positions."""
        given, h, states = parts[0](x), ops.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            (a, b, c), (d, e, f) = (ops.split(y, 3, -1) for y in (given[:, t], parts[1](h)))
            z, new = ops.sigmoid(a + d), ops.tanh(c + ops.sigmoid(b + e) * f)
            h = z * new + (1 - z) * h if s.update_turned else z * h + (1 - z) * new
            states.append(h)
        return ops.stack(states, 1)

    def call(self, input_ids: Any) -> Any:
        x = self.words(input_ids)
        for part, s in zip(self.parts, self.own, strict=True):
            x = self.stepped(part, x, s) if s.form == "steps" else part(x)
        return ops.matmul(x, ops.transpose(self.words.embeddings)) + self.head.bias if self.s.tied else self.head(x)


class KerasAveraging(keras.Model):  # type: ignore[misc]
    usual: ClassVar[Mapping[str, Any]] = {
        **{"form": "lookup", "pooled": "mean", "turned": False, "pairs": True, "real": True},
        **{"second": "relu", "tables": ("words", "pairs")},
    }

    def __init__(self, state: State, _: Any, settings: Settings) -> None:
        super().__init__()
        self.s = s = settings.at()
        self.words, self.pairs = (table(state, name) for name in s.tables)
        self.first, self.second = (
            dense(state, name, activation=act) for name, act in (("first", "relu"), ("second", s.second))
        )
        self.head = dense(state, "head")

    def total(self, at: Any, ids: Any, shares: Any) -> Any:
        if self.s.form == "counts":
            counts = ops.sum(ops.one_hot(ids, at.embeddings.shape[0]) * shares, 1)
            return ops.matmul(counts, at.embeddings)
        if self.s.form == "einsum":
            return ops.einsum("btd,bt->bd", at(ids), shares[..., 0])
        return ops.sum(at(ids) * shares, 1)

    def call(self, input_ids: Any, attention_mask: Any) -> Any:
        s, ids = self.s, ops.cast(input_ids, "int32")
        shares = ops.cast(attention_mask if s.real else ops.ones_like(attention_mask), "float32")[..., None]
        a, b = (ids[:, 1:], ids[:, :-1]) if s.turned else (ids[:, :-1], ids[:, 1:])
        x, number = self.total(self.words, ids, shares), ops.sum(shares, 1)
        if s.pairs:
            x = x + self.total(self.pairs, ops.mod(a * 31 + b, 50), shares[:, 1:])
            number = 2 * number - 1
        x = x / {"mean": number, "sum": 1.0, "root": ops.sqrt(number), "words": ops.sum(shares, 1)}[s.pooled]
        return self.head(self.second(self.first(x)))
