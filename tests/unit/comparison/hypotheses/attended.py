"""Attention row by row, as its definition says."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from embgrad.comparison.weight_values import rounded

RANDOM = np.random.default_rng(3)
EXAMPLES, POSITIONS, HEADS, PAIRS, SIZE = 2, 9, 4, 2, 8
REAL = np.array([[True] * 9, [True] * 6 + [False] * 3])
QUERY = RANDOM.normal(size=(EXAMPLES, POSITIONS, HEADS * SIZE))
KEY, VALUE = RANDOM.normal(size=(2, EXAMPLES, POSITIONS, PAIRS * SIZE))
OTHER = RANDOM.normal(size=(EXAMPLES, POSITIONS, HEADS * SIZE))
BEFORE = {
    "layers.0.attention.v": VALUE,
    "layers.0.attention.v:input": OTHER,
    "layers.0.attention.k": KEY,
    "layers.0.attention.q": QUERY,
}


def everywhere(row: int, column: int) -> bool:
    return True


def causal(row: int, column: int) -> bool:
    return column <= row


def turned(vector: np.ndarray, position: float, base: float = 10000.0, **settings: Any) -> np.ndarray:
    """Return a vector with its pairs of features turned, one pair after the other."""
    part, dtype = settings.get("rounded", ("", "float32"))

    def within(name: str, number: float) -> float:
        return float(rounded(np.array([number]), dtype)[0]) if name in part else number

    size = settings.get("turned", len(vector))
    result = np.array(vector)
    for pair in range(size // 2):
        frequency = within("frequencies", base ** (-2 * pair / size) / settings.get("factor", 1.0))
        frequency = frequency if pair < settings.get("pairs", size) else 0.0
        angle = within("angles", position * frequency)
        cosine, sine = within("cosines", math.cos(angle)), within("sines", math.sin(angle))
        i, j = (2 * pair, 2 * pair + 1) if settings.get("interleaved") else (pair, pair + size // 2)
        result[i] = vector[i] * cosine - vector[j] * sine
        result[j] = vector[j] * cosine + vector[i] * sine
    return result


def attended(
    query: np.ndarray = QUERY,
    key: np.ndarray = KEY,
    value: np.ndarray = VALUE,
    *,
    heads: int = HEADS,
    scale: float | None = None,
    cap: float | None = None,
    seen: Callable[[int, int], bool] = causal,
    padding: bool = True,
    tiled: bool = False,
    rotary: dict[str, Any] | None = None,
    given: float = 0.0,
    places: np.ndarray | None = None,
    bias: Callable[[int, int], float] = lambda head, distance: 0.0,
    sink: Callable[[int], float] = lambda head: -math.inf,
    real: np.ndarray = REAL,
) -> np.ndarray:
    """Return what each head takes of the values, (example, position, head × feature).

    Keys at padding that are not hidden are given a score in addition.
    """
    size = query.shape[-1] // heads
    pairs = key.shape[-1] // size
    result = np.zeros(query.shape)
    for example, row, head in np.ndindex(*query.shape[:2], heads):
        other = head % pairs if tiled else head // (heads // pairs)
        own, shared = slice(head * size, (head + 1) * size), slice(other * size, (other + 1) * size)
        columns = [c for c in range(key.shape[1]) if seen(row, c) and (real[example, c] or not padding)]
        if not columns:
            result[example, row, own] = value[example, :, shared].mean(0)
            continue
        scores = []
        for column in columns:
            q, k = query[example, row, own], key[example, column, shared]
            if rotary is not None:
                at = range(len(real[0])) if places is None else places[example]
                q, k = turned(q, at[row] + rotary.get("ahead", 0), **rotary), turned(k, at[column], **rotary)
            score = float(q @ k) * (size**-0.5 if scale is None else scale)
            score = score if cap is None else cap * math.tanh(score / cap)
            scores.append(score + bias(head, column - row) + (0.0 if real[example, column] else given))
        taken = [value[example, column, shared] for column in columns]
        if rotary is not None and rotary.get("values"):
            taken = [turned(v, column, **rotary) for column, v in zip(columns, taken, strict=True)]
        weights = np.exp(np.array(scores) - max(scores))
        total = weights.sum() + math.exp(sink(head) - max(scores))
        result[example, row, own] = weights @ np.array(taken) / total
    return result
