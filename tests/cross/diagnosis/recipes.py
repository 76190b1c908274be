"""What goes wrong, in words: a recipe names the native changes, and recipes add up to pairs of faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from embgrad import TokenBatch


@dataclass(frozen=True)
class Loss:
    """What is differentiated, as a user's own code would: a name that each framework knows, and its numbers.

    Attributes:
        kind: "cross-entropy", "logit", "probability", "margin", "sum", "projection", "projection-all" (padding too),
            "tokens" (a cross-entropy at each labelled position).
        numbers: labels, indices or the vector.
        against: a margin's other index.
    """

    kind: str
    numbers: np.ndarray
    against: np.ndarray | None = None


@dataclass(frozen=True)
class Recipe:
    """What is done otherwise than the healthy run does.

    Attributes:
        modify: changes of the model by name, see the `MODIFICATIONS` of `changes_torch` and so on.
        loss: the kind of loss in place of the objective, or "next-label", or "".
        reduction: of the examples' losses: "sum", "mean", "mean-all", "mean-tokens", "mean-lengths", "mean-positions".
        tap: where the gradient is taken: "lookup", "norm" (behind the embeddings' norm), "table" (its rows at the ids),
            "scaled" (behind a model's own scaling of the lookup).
        drop: inputs that are not passed: "mask", "types".
        offset: is added to the position ids.
        shift: is added to the ids.
        training: dropout drops.
        post: what is done to the finished numbers, by name, see `POSTS`.
    """

    modify: tuple[str, ...] = ()
    loss: str = ""
    reduction: str = "sum"
    tap: str = "lookup"
    drop: tuple[str, ...] = ()
    offset: int = 0
    shift: int = 0
    training: bool = False
    post: tuple[str, ...] = ()

    def __add__(self, other: Recipe) -> Recipe:
        joint = {}
        for one in fields(self):
            mine, theirs = getattr(self, one.name), getattr(other, one.name)
            if isinstance(mine, tuple):
                joint[one.name] = mine + theirs
            elif one.default in (mine, theirs):
                joint[one.name] = theirs if mine == one.default else mine
            else:
                raise ValueError(f"both recipes say {one.name}: {mine!r} and {theirs!r}")
        return Recipe(**joint)


@dataclass(frozen=True)
class Computed:
    """What the code by hand found: the gradient, (example, position, dim), and each example's loss."""

    values: np.ndarray
    losses: np.ndarray


def _rolled(values: np.ndarray, steps: int) -> np.ndarray:
    moved = np.zeros_like(values)
    if steps > 0:
        moved[:, steps:] = values[:, :-steps]
    else:
        moved[:, :steps] = values[:, -steps:]
    return moved


def _right_aligned(values: np.ndarray, batch: TokenBatch) -> np.ndarray:
    """As a run padded on the left lays them out."""
    return np.stack([np.roll(one, int((~real).sum()), 0) for one, real in zip(values, batch.real, strict=True)])


def _summed_repeats(values: np.ndarray, batch: TokenBatch) -> np.ndarray:
    """As `table.grad[ids]` is: each occurrence has the sum over all of the same token."""
    table = np.zeros((int(batch.ids.max()) + 1, values.shape[-1]), values.dtype)
    np.add.at(table, batch.ids, values)
    return table[batch.ids]


def _unit(values: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    length = np.sqrt((values.astype(np.float64) ** 2).sum(axes, keepdims=True))
    return (values / np.where(length > 0, length, 1)).astype(values.dtype)


def _bfloat16(values: np.ndarray) -> np.ndarray:
    """Rounded to the nearest number of eight significant bits, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)


#: What scripts do to finished numbers: each takes the values, the batch and the embeddings themselves.
POSTS: Final[Mapping[str, Callable[[np.ndarray, TokenBatch, np.ndarray], np.ndarray]]] = {
    "sign": lambda values, *_: -values,
    "tenfold": lambda values, *_: values * np.float32(10.0),
    "loss-scale": lambda values, *_: values * np.float32(1024.0),
    "odd-factor": lambda values, *_: values * np.float32(0.7341),
    "one-later": lambda values, *_: _rolled(values, 1),
    "one-earlier": lambda values, *_: _rolled(values, -1),
    "two-earlier": lambda values, *_: _rolled(values, -2),
    "left-padded": lambda values, batch, _: _right_aligned(values, batch),
    "pads-zeroed": lambda values, batch, _: values * batch.real[..., None].astype(values.dtype),
    "times-input": lambda values, _, embeddings: values * embeddings,
    "absolute": lambda values, *_: np.abs(values),
    "unit-position": lambda values, *_: _unit(values, (2,)),
    "unit-example": lambda values, *_: _unit(values, (1, 2)),
    "unit-all": lambda values, *_: _unit(values, (0, 1, 2)),
    "repeats": lambda values, batch, _: _summed_repeats(values, batch),
    "float16": lambda values, *_: values.astype(np.float16).astype(np.float32),
    "bfloat16": lambda values, *_: _bfloat16(values),
    "over-root-dim": lambda values, *_: (values / np.sqrt(values.shape[-1])).astype(values.dtype),
}
