"""Forward passes of well-known models by hand: their lookups and module calls, recorded as a backend records them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import embgrad
from embgrad.model_points.points import Point
from embgrad.model_points.recorder import PassRecorder


class Value:
    """A stand-in for a tensor that counts how often it is written to."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        self._version = 0

    def write(self) -> None:
        """Write into it."""
        self._version += 1


class Trace:
    """A forward pass that is recorded step by step.

    Args:
        batch: what the model is run on.
        dim: the length of a hidden state.
    """

    def __init__(self, batch: embgrad.TokenBatch, dim: int = 8) -> None:
        self.batch = batch
        self.ids = batch.ids
        self.dim = dim
        self.watch = PassRecorder(batch, None)

    def lookup(self, path: str, indices: Any, dim: int | None = None, padding: int | None = None) -> Value:
        """Record a bare lookup."""
        indices, dim = np.asarray(indices), dim or self.dim
        self.watch.see(path, indices, 1000, dim, padding)
        rows = Value(*indices.shape, dim)
        self.watch.record_output(rows)
        return rows

    def slice(self, path: str, count: int, dim: int | None = None) -> Value:
        """Record a slice of the first rows of a table."""
        self.watch.see(path, np.arange(count), 1000, dim or self.dim, sliced=True)
        rows = Value(count, dim or self.dim)
        self.watch.record_output(rows)
        return rows

    def table(self, path: str, indices: Any, dim: int | None = None, padding: int | None = None) -> Value:
        """Record a lookup by the module that holds the table."""
        return self.module(path, "Embedding", lambda _: self.lookup(path, indices, dim, padding), None)

    def module(self, path: str, kind: str, body: Callable[[Value], Value], given: Value | None, **more: Any) -> Value:
        """Record a call of a module."""
        self.watch.enter(path, kind, given, () if given is None else given.shape, **more)
        gave = body(given)
        self.watch.leave(gave, gave.shape)
        return gave

    def new(self, path: str, kind: str, given: Value, dim: int | None = None) -> Value:
        """Record a module that computes a new value for each position."""
        return self.module(path, kind, lambda x: Value(*x.shape[:-1], dim or self.dim), given)

    def same(self, path: str, kind: str, given: Value) -> Value:
        """Record a module that returns its argument, such as dropout in evaluation mode."""
        return self.module(path, kind, lambda x: x, given)

    def hidden(self, *shape: int) -> Value:
        """Return a hidden state that no module returned."""
        return Value(*(shape or (*self.ids.shape, self.dim)))

    @property
    def points(self) -> list[Point]:
        """Return the recorded points."""
        return self.watch.points()

    @property
    def roles(self) -> dict[str, str]:
        """Return the key of each role's point; a role of several points is an error."""
        pairs = [(role, point.key) for point in self.points for role in point.roles]
        assert len(dict(pairs)) == len([role for role, _ in pairs if role != "word"]) + ("word" in dict(pairs)), pairs
        return dict(pairs)


def encoder_layer(trace: Trace, path: str, given: Value, kind: str = "Layer") -> Value:
    """Record a transformer's layer: attention, two norms, and an MLP whose units are as wide as the hidden states."""

    def attention(x: Value) -> Value:
        for name in ("query", "key", "value"):
            trace.new(f"{path}.attention.{name}", "Linear", x)
        return trace.new(f"{path}.attention.dense", "Linear", trace.hidden(*x.shape))

    def body(x: Value) -> Value:
        x = trace.module(f"{path}.attention", "Attention", attention, x)
        x = trace.new(f"{path}.norm.0", "LayerNorm", trace.hidden(*x.shape))
        for number in range(4):  # a chain longer than most models' layers
            x = trace.new(f"{path}.mlp.{number}", "Linear", x)
        return trace.new(f"{path}.norm.1", "LayerNorm", trace.hidden(*x.shape))

    return trace.module(path, kind, body, given)


def stack(trace: Trace, path: str, given: Value, count: int, kind: str = "Layer") -> Value:
    """Record a list of layers."""
    for number in range(count):
        given = encoder_layer(trace, f"{path}.{number}", given, kind)
    return given


def bert_embeddings(trace: Trace, path: str = "embeddings", padding: int | None = None) -> Value:
    """Record words, types and positions in one module, then a norm and dropout."""
    positions = np.arange(trace.ids.shape[1])[None]
    types = np.zeros_like(trace.ids) if trace.batch.types is None else trace.batch.types

    def body(_: Value) -> Value:
        trace.table(f"{path}.word_embeddings", trace.ids, padding=padding)
        trace.table(f"{path}.token_type_embeddings", types)
        trace.table(f"{path}.position_embeddings", positions)
        x = trace.new(f"{path}.LayerNorm", "LayerNorm", trace.hidden())
        return trace.same(f"{path}.dropout", "Dropout", x)

    return trace.module(path, "Embeddings", body, None)


def bert(batch: embgrad.TokenBatch, layers: int = 3) -> Trace:
    """Return a trace of BERT with a pooler."""
    trace = Trace(batch)

    def encoder(x: Value) -> Value:
        return stack(trace, "encoder.layer", x, layers)

    def model(_: Value) -> Value:
        x = trace.module("encoder", "Encoder", encoder, bert_embeddings(trace, padding=0))
        first = trace.hidden(len(trace.ids), trace.dim)
        trace.new("pooler", "Pooler", first)
        return x

    trace.module("", "Bert", model, None)
    return trace
