"""Texts for models that read lengths, and what a search and the deletion of tokens must give for them, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

import embgrad

__all__ = ["IDS", "MASK", "TABLE", "TOKENS", "WEIGHT", "expect_new_lengths", "logit_by_hand"]

IDS = np.array([[3, 4, 5, 0], [6, 7, 8, 3]])
MASK = np.array([[1, 1, 1, 0], [1, 1, 1, 1]])
TOKENS = [["[CLS]", "a", "b", "[PAD]"], ["[CLS]", "c", "d", "e"]]

#: The table, (vocab, dim), and the weight of a head, (dim, classes).
TABLE = np.random.default_rng(3).normal(size=(9, 4)).astype(np.float32)
WEIGHT = np.random.default_rng(4).normal(size=(4, 2)).astype(np.float32)


def logit_by_hand(ids: Any, length: int) -> float:
    """Return the logit of class 1: of the tanh of the mean of the first rows, and of the last of them."""
    rows = TABLE[list(ids)][:length].astype(np.float64)
    return float(((np.tanh(rows.sum(0) / length) + rows[-1]) @ WEIGHT)[1])


def expect_new_lengths(
    model: Any, name: str, lengths: Any, call: Any = None, ways: tuple[str, ...] = ("insert", "delete", "trigger")
) -> None:
    """Check that a model which reads the lengths, and no mask, gets those of the texts that are tried.

    Args:
        model: computes `logit_by_hand`.
        name: the name of its input of lengths.
        lengths: returns native lengths.
        call: see `embgrad.gradients`.
        ways: how a search changes the texts.
    """
    batch = embgrad.TokenBatch(IDS, MASK, extras={name: lengths(MASK.sum(1))}, tokens=TOKENS)
    logit = embgrad.Logit(1)
    methods = {
        "insert": embgrad.methods.HotFlip(steps=1, candidates=20, insert=True),
        "delete": embgrad.methods.HotFlip(steps=1, candidates=20, delete=True),
        "trigger": embgrad.methods.UniversalTrigger(2, steps=1, candidates=6),
    }
    for way in ways:
        found = embgrad.search(model, batch, logit, methods[way], call=call)
        counts = found.batch.real.sum(1)
        if way == "trigger":
            assert counts.tolist() == [5, 6]
        np.testing.assert_array_equal(np.asarray(found.batch.extras[name]), counts)
        texts = [logit_by_hand(ids, count) for ids, count in zip(found.batch.ids, counts, strict=True)]
        np.testing.assert_allclose(found.objective, texts, atol=1e-5)
    measured = embgrad.metrics.faithfulness(model, batch, logit, np.zeros((2, 4)), call=call, curves=False)
    for example, length in enumerate(MASK.sum(1)):
        text = IDS[example, :length]
        for position in range(1, length):
            change = logit_by_hand(text, length) - logit_by_hand(np.delete(text, position), length - 1)
            np.testing.assert_allclose(measured.leave_one_out[example, position], change, atol=1e-5)
