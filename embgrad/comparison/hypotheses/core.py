"""The core of an attention: from queries, keys and values to the sum of values that each head takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from embgrad.comparison.hypotheses.core_distances import DistanceTerms
from embgrad.comparison.hypotheses.core_parts import HeadNorm, Mask, PositionBias, Rotary
from embgrad.comparison.hypotheses.site import Values
from embgrad.comparison.hypotheses.sources import Fused, Source

__all__ = ["Core", "Part"]


class Part(NamedTuple):
    """Some of an attention's outputs.

    Attributes:
        examples: their indices.
        rows: the positions of the queries.
        heads: the indices of the heads.
        real: the queries that count, bool, (example, row): outputs at others are zeros.
    """

    examples: np.ndarray
    rows: np.ndarray
    heads: np.ndarray
    real: np.ndarray

    def of(self, values: np.ndarray, size: int) -> np.ndarray:
        """Return these parts of an output, (example, position, head × feature), as (example, position, head, feature)."""
        chosen = values[self.examples][:, self.rows]
        return self.counted(chosen.reshape(*chosen.shape[:2], -1, size)[:, :, self.heads])

    def counted(self, outputs: np.ndarray) -> np.ndarray:
        """Return outputs, (example, query, head, feature), with zeros at the queries that do not count."""
        return np.where(self.real[..., None, None], outputs, 0)


@dataclass(frozen=True, eq=False)
class Core:
    """The settings of an attention's core.

    Attributes:
        query: the tensor of the queries, (example, position, head × feature).
        key: that of the keys, with as many heads or fewer.
        value: that of the values, with as many heads as the keys.
        heads: the number of heads.
        scale: what products of queries and keys are multiplied by.
        real: the keys' positions that are not padding, bool, (example, position).
        tiled: whether head h takes key h modulo their number, instead of neighbouring heads sharing one.
        cap: the soft cap of the scores; None for none.
        mask: which keys each query sees.
        rotary: rotary positions; None for none.
        bias: numbers that are added to scores by the distance; None for none.
        distances: products of queries and keys with vectors by distance; None for none.
        norm: norms of each head's queries and keys; None for none.
        sink: a score of each head, (head,), which takes its share of the weights for no value; None for none.
        split: how heads stand in queries, keys and values: "by head", "by feature" where a head has each so many-th feature, or
            "unturned", where the axes of heads and positions have not been exchanged.
        joined: how the heads' outputs stand in the output: "by head", "by feature", or "unturned", where the axes of heads
            and positions have not been exchanged back.
        places: the positions that rotary positions are of, (example, position); None for those in the tensors.
        over: what the softmax is over, "keys", or by mistake "queries" or "real queries", those that are not padding.
        order: for each head of the output the head of the queries and that of the keys and values; None for the usual ones.
    """

    query: Source
    key: Source
    value: Source
    heads: int
    scale: float
    real: np.ndarray
    tiled: bool = False
    cap: float | None = None
    mask: Mask = field(default_factory=Mask)
    rotary: Rotary | None = None
    bias: PositionBias | None = None
    distances: DistanceTerms | None = None
    norm: HeadNorm | None = None
    sink: np.ndarray | None = None
    split: str = "by head"
    joined: str = "by head"
    places: np.ndarray | None = None
    over: str = "keys"
    order: tuple[tuple[int, int], ...] | None = None

    @property
    def size(self) -> int:
        """The number of features of each head of queries and keys."""
        return int(self.query.values.shape[-1]) // self.heads

    @property
    def value_size(self) -> int:
        """The number of features of each head of values, and of the output."""
        return int(self.value.values.shape[-1]) // self.pairs

    @property
    def is_latent(self) -> bool:
        """Return whether keys are made of tensors of which heads share some."""
        return isinstance(self.key, Fused) and not isinstance(self.query, Fused)

    @property
    def crosses(self) -> bool:
        """Return whether keys and values are those of another text."""
        return self.query.values.shape[:2] != self.key.values.shape[:2]

    @property
    def pairs(self) -> int:
        """The number of heads of keys and values."""
        return int(self.key.values.shape[-1]) // self.size

    @property
    def usual_order(self) -> tuple[tuple[int, int], ...]:
        """For each head the head itself, and that of its keys and values."""
        ratio = self.heads // self.pairs
        return tuple((head, head % self.pairs if self.tiled else head // ratio) for head in range(self.heads))

    @property
    def usual_scale(self) -> float:
        """One over the root of the heads' size."""
        return 1 / math.sqrt(self.size)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the points that it reads."""
        return tuple(dict.fromkeys(name for source in (self.query, self.key, self.value) for name in source.names))

    @property
    def whole(self) -> Part:
        """The part that is everything."""
        examples, positions = self.query.values.shape[:2]
        real = np.ones((examples, positions), bool)
        return Part(np.arange(examples), np.arange(positions), np.arange(self.heads), real)

    @property
    def predicted(self) -> np.ndarray:
        """Its output, (example, position, head × feature)."""
        return self._joined(self.part(self.whole))

    def compute(self, at: Values) -> np.ndarray:
        """Return its output in a pass whose values at points a function returns."""
        sources = {
            name: replace(source, values=source.read(at))
            for name, source in (("query", self.query), ("key", self.key), ("value", self.value))
        }
        return replace(self, **sources).predicted  # type: ignore[arg-type]

    def part(self, part: Part) -> np.ndarray:
        """Return some of its outputs, (example, query, head, feature)."""
        return part.counted((self.weights(part) @ self.taken(part)).transpose(0, 2, 1, 3))

    def taken(self, part: Part) -> np.ndarray:
        """Return the values that some heads take, (example, head, key, feature)."""
        heads = np.array(self.order or self.usual_order)[part.heads, 1]
        positions = np.arange(self.real.shape[1])
        taken = self._split(self.value, self.pairs, part.examples, positions, heads)
        taken = taken if self.rotary is None else self.rotary.turn_values(taken, self._places(part, positions))
        return np.asarray(taken.transpose(0, 2, 1, 3))

    def weights(self, part: Part) -> np.ndarray:
        """Return the weights of the values in some outputs, (example, head, query, key)."""
        if self.over == "keys":
            return self._softmax(*self._scores(part), part, -1)
        scores, seen = self._scores(part._replace(rows=np.arange(self.query.values.shape[1])))
        if self.over == "real queries":
            seen = seen & self.real[part.examples][:, None, :, None]
        return self._softmax(scores, seen, part, -2)[:, :, part.rows]

    def _scores(self, part: Part) -> tuple[np.ndarray, np.ndarray]:
        """Return scores, (example, head, query, key), and which of the keys are seen, (example, 1, query, key)."""
        heads, shared = np.array(self.order or self.usual_order)[part.heads].T
        positions = np.arange(self.real.shape[1])
        query = self._split(self.query, self.heads, part.examples, part.rows, heads)
        key = self._split(self.key, self.pairs, part.examples, positions, shared)
        norm = None if self.norm is None else self.norm.of(heads, shared)
        whole: tuple[np.ndarray, ...] = ()
        if norm is not None and norm.across:
            whole = self.query.values[part.examples][:, part.rows], self.key.values[part.examples]
        if norm is not None and not norm.late:
            query, key = norm.apply(query, key, whole)
        if self.rotary is not None:
            query = self.rotary.turn_queries(query, self._places(part, part.rows))
            key = self.rotary.turn_keys(key, self._places(part, positions))
        if norm is not None and norm.late:  # positions leave the lengths as they are
            query, key = norm.apply(query, key, whole)
        scores = query.transpose(0, 2, 1, 3) @ key.transpose(0, 2, 3, 1)
        if self.distances is not None:
            scores = scores + self.distances.products(query, key, part.rows, part.heads)
        scores = self.scale * scores
        if self.cap is not None:
            scores = self.cap * np.tanh(scores / self.cap)
        if self.bias is not None:
            scores = scores + self.bias.of(self.heads, len(positions))[part.heads][:, part.rows]
        seen = self.mask.seen(self.real[part.examples], part.rows)
        if self.mask.soft is not None:
            scores = self.mask.soft.apply(scores, self.mask.kept(self.real[part.examples], part.rows))
            seen = self.mask.hard.seen(self.real[part.examples], part.rows)
        return scores, seen[:, None]

    def _softmax(self, scores: np.ndarray, seen: np.ndarray, part: Part, axis: int) -> np.ndarray:
        """Return the weights of scores of which some are seen."""
        sees = seen.any(axis, keepdims=True)
        scores = np.where(seen, scores, np.where(sees, -np.inf, 0.0))
        most = scores.max(axis, keepdims=True)
        weights = np.exp(scores - most)
        total = weights.sum(axis, keepdims=True)
        if self.sink is not None:
            total = total + np.exp(self.sink[part.heads, None, None] - most)
        return np.asarray(weights / (np.where(sees, total, np.inf) if self.mask.blank else total))

    def _places(self, part: Part, positions: np.ndarray) -> np.ndarray:
        """Return the positions that rotary positions are of at some positions, (position,) or (example, position)."""
        return positions if self.places is None else self.places[np.ix_(part.examples, positions)]

    def _split(
        self, source: Source, count: int, examples: np.ndarray, positions: np.ndarray, heads: np.ndarray
    ) -> np.ndarray:
        """Return some of a number of heads at some positions, (example, position, head, feature)."""
        whole = source.values.reshape(*source.values.shape[:2], count, -1)
        if self.split == "by feature":
            whole = source.values.reshape(*source.values.shape[:2], -1, count).swapaxes(2, 3)
        elif self.split == "unturned":
            whole = source.values.reshape(*whole.shape[::2], *whole.shape[1::2]).swapaxes(1, 2)
        return np.asarray(whole[examples[:, None, None], positions[:, None], heads])

    def _joined(self, heads: np.ndarray) -> np.ndarray:
        shape = (*heads.shape[:2], -1)
        if self.joined == "by feature":
            heads = heads.swapaxes(2, 3)
        elif self.joined == "unturned":
            heads = heads.swapaxes(1, 2)
        return np.asarray(heads.reshape(shape))
