"""Searches with chosen texts, as `embgrad.search` returns them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import embgrad
from embgrad.results.search import History, Search


def vocabulary(*texts: Sequence[str]) -> dict[str, int]:
    """Return an id for each token, from 1."""
    return {token: number for number, token in enumerate(dict.fromkeys(token for text in texts for token in text), 1)}


def batch_of(texts: Sequence[Sequence[str]], ids: dict[str, int], left: bool = False) -> embgrad.TokenBatch:
    """Return a batch of tokens, padded with id 0."""
    most = max(map(len, texts))
    pads = [["[PAD]"] * (most - len(text)) for text in texts]
    tokens = [[*pad, *text] if left else [*text, *pad] for text, pad in zip(texts, pads, strict=True)]
    numbers = np.array([[ids.get(token, 0) for token in row] for row in tokens])
    return embgrad.TokenBatch(numbers, (numbers > 0).astype(int), tokens=tokens)


def search_of(
    before: Sequence[Sequence[str]],
    after: Sequence[Sequence[str]],
    *,
    until: Any = 0.5,
    method: dict[str, Any] | None = None,
    left: bool = False,
    **changes: Any,
) -> Search:
    """Return a search of two steps; L of example i is i − 1 before, and rises by 1 with each step, unless the text stayed."""
    ids = vocabulary(*before, *after)
    old, new = batch_of(before, ids, left), batch_of(after, ids, left)
    count = len(before)
    first = np.arange(count) - 1.0
    moved = np.array([list(one) != list(other) for one, other in zip(before, after, strict=True)])
    last = first + 2.0 * moved
    width = max(old.shape[1], new.shape[1])
    shown = [np.full((count, width), -1), np.full((count, width), -1)]
    for ids_shown, batch in zip(shown, (old, new), strict=True):
        ids_shown[:, : batch.shape[1]] = np.where(batch.real, batch.ids, -1)
    fields: dict[str, Any] = {
        "before": old, "batch": new,
        "objective_before": first,
        "objective": last,
        "success": None if until is None else last >= np.asarray(until),
        "history": History(objective=np.stack([first, (first + last) / 2, last]),
            ids=np.stack([shown[0], shown[0], shown[1]]), evaluations=1 + np.arange(3)[:, None] * 10 * moved,
            gradients=np.arange(3)[:, None] * moved, seconds=np.array([0.25, 0.5, 1.5])),
        "texts_before": tuple(" ".join(text) for text in before),
        "texts": tuple(" ".join(text) for text in after),
        "trigger": None,
        "provenance": {"backend": "reference", "model": "some.Model", "objective": {"class": "Logit", "index": 1},
            "method": {"class": "GCG", "steps": 2, **(method or {})}, "goal": "maximize", "until": until},
    }  # fmt: skip
    return Search(**{**fields, **changes})
