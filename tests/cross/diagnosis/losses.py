"""The losses and their reductions, written once on the few functions of arrays that a framework supplies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.cross.diagnosis.recipes import Loss


@dataclass(frozen=True)
class Functions:
    """A framework's functions of arrays.

    Attributes:
        array: makes an array of the framework, float32 or of whole numbers.
        exp: the exponential.
        log_softmax: over the last axis.
        pick: takes an array and whole numbers, and returns the entries at these along the last axis.
        total: takes an array and an axis, and returns the sum over the axis.
    """

    array: Callable[[np.ndarray], Any]
    exp: Callable[[Any], Any]
    log_softmax: Callable[[Any], Any]
    pick: Callable[[Any, Any], Any]
    total: Callable[[Any, int], Any]


def losses_of(output: Any, loss: Loss, world: Any, native: Functions) -> Any:
    """Return each example's own loss; the output is float32."""
    array, pick, total = native.array, native.pick, native.total
    if loss.kind == "sum":
        return total(output, 1)
    if loss.kind in ("first", "projection", "projection-all"):
        scores = total(output * array(loss.numbers.astype(np.float32)), -1)
        if loss.kind == "first":
            return scores[:, 0]
        return total(
            scores if loss.kind == "projection-all" else scores * array(world.batch.real.astype(np.float32)), 1
        )
    labels = array(np.maximum(loss.numbers, 0))
    if loss.kind in ("logit", "margin"):
        chosen = pick(output, labels)
        return chosen - pick(output, array(loss.against)) if loss.kind == "margin" else chosen
    likely = pick(native.log_softmax(output), labels)
    if loss.kind == "tokens":
        return total(-likely * array((loss.numbers != -100).astype(np.float32)), 1)
    return {
        "cross-entropy": lambda: -likely,
        "log-probability": lambda: likely,
        "probability": lambda: native.exp(likely),
    }[loss.kind]()


def reduced(losses: Any, reduction: str, world: Any, native: Functions) -> Any:
    """Return the scalar that a script pulls back."""
    real = world.batch.real
    shares: dict[str, Any] = {
        "sum": 1,
        "mean": 1 / len(real),
        "mean-all": 1 / (len(real) * world.size.classes),
        "mean-tokens": 1 / real.sum(),
        "mean-labels": 1 / (world.loss("tokens").numbers != -100).sum(),
        "mean-lengths": 1 / real.sum(1),
        "mean-positions": 1 / real.shape[1],
    }
    return native.total(losses * native.array(np.broadcast_to(shares[reduction], len(real)).astype(np.float32)), 0)
