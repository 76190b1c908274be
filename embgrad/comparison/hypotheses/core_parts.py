"""The parts of an attention's core: its mask, rotary positions, biases by distance, and norms of queries and keys."""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Final, Literal

import numpy as np

from embgrad.common.tolerance import HALVES as HALF_DTYPES
from embgrad.comparison.hypotheses.site import Site
from embgrad.comparison.recording import HeldWeight
from embgrad.comparison.weight_values import rounded

__all__ = [
    "HALVES",
    "INTERLEAVED",
    "ROUNDED",
    "ROUNDINGS",
    "HeadNorm",
    "Mask",
    "PositionBias",
    "Rotary",
    "Scaling",
    "Soft",
    "gains_by_head",
    "gains_of",
    "places_of",
    "slopes_of",
]


@dataclass(frozen=True)
class Soft:
    """A finite number in place of minus infinity in a mask, with which masked keys are seen a little.

    Attributes:
        keys: the keys that it is for: "padding", those at "positions" that a query does not see, "all" of both, or by mistake
            "text", the keys that are not padding.
        number: what is subtracted from their scores.
        instead: whether minus the number is their score.
    """

    keys: str
    number: float
    instead: bool = False

    def apply(self, scores: np.ndarray, seen: np.ndarray) -> np.ndarray:
        """Return the scores, (example, head, query, key), of keys of which some are seen, (example, query, key)."""
        if self.instead:
            return np.where(seen[:, None], scores, -self.number)
        given = scores - self.number
        # Of a large number's sum with a score, single precision keeps few digits.
        return np.where(seen[:, None], scores, given.astype(np.float32) if self.number >= LARGE else given)


#: The number from which a sum with scores is rounded to single precision.
LARGE: Final = 1e3


@dataclass(frozen=True)
class Mask:
    """The settings of an attention's mask.

    Attributes:
        causal: whether a query sees no later keys.
        window: the number of positions up to its own from which a causal query sees keys; the largest distance of a key that
            any other query sees; None for all.
        shift: how many later keys a causal query sees; -1 where it does not see its own position.
        padding: whether keys at padding are hidden.
        blank: whether a query that sees no key takes nothing; otherwise it takes the mean of all values.
        itself: whether a query that would see no key sees itself.
        soft: a finite number for masked keys; None where they are hidden.
    """

    causal: bool = False
    window: int | None = None
    shift: int = 0
    padding: bool = True
    blank: bool = False
    itself: bool = False
    soft: Soft | None = None

    @property
    def hard(self) -> Mask:
        """The mask of the keys that are hidden, beside those with a finite number."""
        keys = "" if self.soft is None else self.soft.keys
        plain = replace(self, causal=False, window=None) if keys in ("positions", "all") else self
        return replace(plain, padding=self.padding and keys not in ("padding", "all", "text"))

    def kept(self, real: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the keys from whose scores no finite number is subtracted, bool, (example, query, key), see `seen`."""
        is_of_text = self.soft is not None and self.soft.keys == "text"
        return np.repeat(~real[:, None], len(rows), 1) if is_of_text else self.seen(real, rows)

    def seen(self, real: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return which keys some queries see, bool, (example, query, key).

        Args:
            real: the positions that are not padding, (example, position).
            rows: the queries' positions.
        """
        ahead = np.arange(real.shape[1]) - rows[:, None]
        seen = ahead <= self.shift if self.causal else np.ones(ahead.shape, bool)
        if self.window is not None:
            seen = seen & (ahead > -self.window if self.causal else abs(ahead) <= self.window)
        seen = np.asarray(seen & real[:, None] if self.padding else np.broadcast_to(seen, (len(real), *seen.shape)))
        return seen | ((ahead == 0) & ~seen.any(-1, keepdims=True)) if self.itself else seen


Layout = Literal["halves", "interleaved"]
HALVES: Final = "halves"
INTERLEAVED: Final = "interleaved"


@dataclass(frozen=True)
class Scaling:
    """A change of the frequencies, for texts longer than those of the training.

    Attributes:
        kind: "linear", "llama3" or "yarn".
        factor: the number that frequencies are divided by; in llama3 and yarn only low ones.
        low: llama3's `low_freq_factor`; yarn's `beta_slow`.
        high: llama3's `high_freq_factor`; yarn's `beta_fast`.
        original: the length of the training's texts.
        rounded: whether the ends of yarn's ramp are rounded to whole pairs of features.
    """

    kind: str
    factor: float
    low: float = 1.0
    high: float = 4.0
    original: float = 8192.0
    rounded: bool = True

    def apply(self, frequencies: np.ndarray, base: float, size: int) -> np.ndarray:
        """Return the changed frequencies, from the highest to the lowest."""
        if self.kind == "linear":
            return frequencies / self.factor
        if self.kind == "llama3":
            turns = self.original * frequencies / (2 * math.pi)
            kept = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
        else:
            first, last = (
                size * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(base))
                for turns in (self.high, self.low)
            )
            if self.rounded:
                first, last = math.floor(first), math.ceil(last)
            start, end = max(first, 0), min(last, size - 1)
            kept = 1 - np.clip((np.arange(len(frequencies)) - start) / max(end - start, 1e-3), 0, 1)
        return np.asarray(kept * frequencies + (1 - kept) * frequencies / self.factor)

    @property
    def length(self) -> float:
        """The number that cosines and sines are multiplied by."""
        return 0.1 * math.log(self.factor) + 1 if self.kind == "yarn" and self.factor > 1 else 1.0

    @property
    def text(self) -> str:
        """A readable description."""
        if self.kind == "linear":
            return f"linear with factor {self.factor:g}"
        ends = "" if self.rounded else ", without rounding"
        return (
            f"{self.kind} with factor {self.factor:g}, {self.low:g}, {self.high:g} and length {self.original:g}{ends}"
        )


@dataclass(frozen=True)
class Rotary:
    """The settings of rotary positions.

    Attributes:
        base: the base of the frequencies.
        size: the number of features of a head that are turned, the first ones.
        pairs: how many pairs of these have a frequency that is not zero, those of the highest; None for all.
        layout: "halves" if feature i is paired with i + size / 2, "interleaved" if with its neighbour.
        scaling: a change of the frequencies; None for none.
        queries: whether queries are turned.
        keys: whether keys are turned.
        ahead: how much further the queries' positions are than the keys'.
        sense: 1, or -1 where angles have the opposite sign.
        values: whether values are turned as well, as keys are.
        rounded: what is rounded to half precision, one of `ROUNDED`, and the dtype; None where nothing is.
    """

    base: float
    size: int
    layout: Layout = "halves"
    scaling: Scaling | None = None
    queries: bool = True
    keys: bool = True
    ahead: int = 0
    sense: int = 1
    values: bool = False
    rounded: tuple[str, str] | None = None
    pairs: int | None = None

    @property
    def turned(self) -> int:
        """The number of features whose frequency is not zero."""
        return self.size if self.pairs is None else 2 * self.pairs

    def turn_queries(self, values: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return turned queries, (example, position, head, feature), at positions (position,) or (example, position)."""
        return self._turn(values, positions + self.ahead) if self.queries else values

    def turn_keys(self, values: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return turned keys, (example, position, head, feature)."""
        return self._turn(values, positions) if self.keys else values

    def turn_values(self, values: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return values, (example, position, head, feature), turned where the model turns them."""
        return self._turn(values, positions) if self.values else values

    def _turn(self, values: np.ndarray, positions: np.ndarray) -> np.ndarray:
        distinct, at = np.unique(positions, return_inverse=True)
        tables = _angles(self.base, self.size, self.scaling, tuple(distinct.tolist()), self.rounded, self.pairs)
        cosine, sine = (table[at.reshape(positions.shape)] for table in tables)
        half = self.size // 2
        turned = np.array(values)
        if self.layout == INTERLEAVED:
            first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
        else:
            first, second = slice(0, half), slice(half, 2 * half)
        x, y = values[..., first], values[..., second]
        turned[..., first] = x * cosine - self.sense * y * sine
        turned[..., second] = y * cosine + self.sense * x * sine
        return turned

    def of_head(self, old: int, new: int) -> Rotary:
        """Return the settings with the same share of heads of another size."""
        return replace(self, size=max(2, 2 * round(self.size * new / old / 2)), pairs=None)


#: What of rotary positions is rounded where they are computed in half precision, each with what is computed from it exactly.
ROUNDED: Final = ("frequencies", "angles", "frequencies and angles", "cosines and sines")
ROUNDINGS: Final = tuple(itertools.product(ROUNDED, HALF_DTYPES))


@lru_cache(maxsize=512)
def _angles(
    base: float,
    size: int,
    scaling: Scaling | None,
    positions: tuple[int, ...],
    in_half: tuple[str, str] | None,
    pairs: int | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the cosines and sines, (position, 1, pair)."""
    part, dtype = in_half or ("", "float32")

    def within(name: str, values: np.ndarray) -> np.ndarray:
        return rounded(values, dtype).astype(np.float64) if name in part else values

    half = size // 2
    frequencies = base ** (-np.arange(half) * 2.0 / (2 * half))
    length = 1.0
    if scaling is not None:
        frequencies, length = scaling.apply(frequencies, base, size), scaling.length
    if pairs is not None:
        frequencies = np.where(np.arange(half) < pairs, frequencies, 0.0)
    angles = within("angles", np.array(positions, np.float64)[:, None, None] * within("frequencies", frequencies))
    return within("cosines", length * np.cos(angles)), within("sines", length * np.sin(angles))


def places_of(site: Site) -> np.ndarray | None:
    """Return the position ids of both batches, if they are equal and other than the tokens' places in the tensors."""
    first, second = (recording.batch.extras.get("position_ids") for recording in site.recordings)
    if first is None or second is None or not np.array_equal(first, second):
        return None
    own = np.broadcast_to(np.arange(site.real.shape[1]), site.real.shape)
    return np.asarray(first) if np.shape(first) == own.shape and not np.array_equal(first, own) else None


#: The most slopes that a text shows.
SHOWN: Final = 4


@dataclass(frozen=True, eq=False)
class PositionBias:
    """Numbers by head and distance: those of ALiBi, or a table by buckets of distances, as in T5.

    Attributes:
        table: (bucket, head), the numbers by buckets; None for ALiBi.
        causal: whether all buckets are for earlier keys; otherwise half of them are for later ones.
        longest: the distance from which all are in the last bucket.
        sense: 1, or -1 where earlier keys count as later ones.
        ahead: how much later keys count as they are.
        slopes: (head,), what distances are multiplied by; None for those of ALiBi, where there is no table.
        factor: what the table's numbers are multiplied by.
    """

    table: np.ndarray | None = None
    causal: bool = False
    longest: int = 128
    sense: int = 1
    ahead: int = 0
    slopes: np.ndarray | None = None
    factor: float = 1.0

    @property
    def is_by_head(self) -> bool:
        """Return whether it has numbers for a given number of heads."""
        return self.table is not None or self.slopes is not None

    def of(self, heads: int, positions: int) -> np.ndarray:
        """Return the numbers, (head, query, key)."""
        key = (heads, positions)
        if key not in self._kept:
            self._kept[key] = self._computed(heads, positions)
        return self._kept[key]

    @cached_property
    def _kept(self) -> dict[tuple[int, int], np.ndarray]:
        return {}

    def _computed(self, heads: int, positions: int) -> np.ndarray:
        ahead = self.sense * (np.arange(positions) - np.arange(positions)[:, None]) + self.ahead
        if self.table is None:
            slopes = slopes_of(heads) if self.slopes is None else self.slopes
            return np.asarray(-slopes[:, None, None] * abs(ahead))
        return np.asarray(self.factor * np.moveaxis(self.table[self._bucket(ahead)], -1, 0))

    def _bucket(self, ahead: np.ndarray) -> np.ndarray:
        """Return the buckets of distances, as defined by Raffel et al., 2020, in their code."""
        assert self.table is not None, "ALiBi has no buckets"
        count = len(self.table)
        start = np.zeros(ahead.shape, int)
        distance = np.maximum(-ahead, 0)
        if not self.causal:
            count //= 2
            start = np.where(ahead > 0, count, 0)
            distance = abs(ahead)
        exact = count // 2
        far = np.log(np.maximum(distance, 1) / exact) / math.log(self.longest / exact) * (count - exact)
        coarse = np.minimum(exact + far.astype(int), count - 1)
        return np.asarray(start + np.where(distance < exact, distance, coarse))

    @property
    def text(self) -> str:
        """A readable description."""
        if self.slopes is not None:
            shown = [f"{slope:.4g}" for slope in self.slopes]
            return f"by the slopes {', '.join([*shown[:SHOWN], *(['…'] if shown[SHOWN:] else [])])}"
        if self.table is None:
            return "that of ALiBi"
        sides = "earlier keys" if self.causal else "both sides"
        turned = "" if self.sense == 1 else ", of the opposite distances"
        turned += f", of distances {self.ahead:+d}" if self.ahead else ""
        turned += f", times {self.factor:.6g}" if self.factor != 1 else ""
        return f"by {len(self.table)} buckets of {sides} up to distance {self.longest}{turned}"


def slopes_of(heads: int) -> np.ndarray:
    """Return ALiBi's slopes, (head,), as defined by Press et al., 2022."""
    power = 2 ** math.floor(math.log2(heads))
    first = 2.0 ** (-8.0 / power * np.arange(1, power + 1))
    between = 2.0 ** (-4.0 / power * np.arange(1, 2 * power + 1, 2))
    return np.concatenate([first, between[: heads - power]])


#: The most gains of a layer that may be those of queries and keys.
MOST_GAINS: Final = 4


@dataclass(frozen=True, eq=False)
class HeadNorm:
    """The settings of the norms of queries and keys.

    Attributes:
        query: the gain of queries, (feature,), or (head, feature) where each head has its own; None where they have no norm.
        key: the gain of keys, likewise.
        epsilon: the number that is added to the mean of squares.
        offset: what is added to the gains: 0, or 1.
        late: whether the norms come after rotary positions.
        centred: whether the mean is subtracted first.
        across: whether all heads of a position are normalised together.
    """

    query: np.ndarray | None
    key: np.ndarray | None
    epsilon: float = 1e-6
    offset: float = 0.0
    late: bool = False
    centred: bool = False
    across: bool = False

    def of(self, heads: np.ndarray, shared: np.ndarray) -> HeadNorm:
        """Return the norms of some heads of queries, and of some of keys."""
        query, key = (
            gain if gain is None or gain.ndim == 1 else gain[at]
            for gain, at in ((self.query, heads), (self.key, shared))
        )
        return replace(self, query=query, key=key)

    def apply(
        self, query: np.ndarray, key: np.ndarray, wholes: Iterable[np.ndarray] = ()
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return queries and keys, (example, position, head, feature), after their norms.

        Args:
            query: the queries of some heads.
            key: the keys of some heads.
            wholes: those of all heads, (example, position, head × feature), which may be normalised together.
        """
        every = [whole[..., None, :] for whole in wholes] if self.across else (None, None)
        return self._normed(query, self.query, every[0]), self._normed(key, self.key, every[1])

    def _normed(self, values: np.ndarray, gain: np.ndarray | None, whole: np.ndarray | None) -> np.ndarray:
        if gain is None:
            return values
        whole = values if whole is None else whole
        mean = whole.mean(-1, keepdims=True) if self.centred else 0.0
        square = ((whole - mean) ** 2).mean(-1, keepdims=True)
        return np.asarray((values - mean) / np.sqrt(square + self.epsilon) * (gain + self.offset))

    @property
    def roles(self) -> tuple[str, ...]:
        """The parts that go through a norm: "queries", "keys"."""
        return tuple(role for role, gain in (("queries", self.query), ("keys", self.key)) if gain is not None)


def gains_of(site: Site, size: int, *, of_b_alone: bool = False) -> list[np.ndarray]:
    """Return the reference's weights in the site's layer that may be gains of heads of a size, (size,); or those of b alone."""
    own = [
        weight
        for weight in site.recordings[of_b_alone].weights
        if weight.layer == site.layer
        and weight.shape == (size,)
        and (not of_b_alone or weight.name in site.matching.alone_b)
    ]
    return [weight.get().astype(np.float64) for weight in own[:MOST_GAINS]]


def gains_by_head(site: Site, heads: int, size: int) -> list[np.ndarray]:
    """Return the reference's gains by head in the site's layer, (head, size), which one weight or several hold."""
    stacks: dict[str, list[HeldWeight]] = defaultdict(list)
    for weight in site.weights:
        if weight.shape == (size,):
            stacks[re.sub(r"\d+(?=\D*$)", "N", weight.name)].append(weight)
    whole = [[weight] for weight in site.weights if weight.shape == (heads, size)]
    found = [*whole, *(stack for stack in stacks.values() if len(stack) == heads > 1)]
    return [np.stack([it.get() for it in held]).reshape(heads, size).astype(np.float64) for held in found[:MOST_GAINS]]
