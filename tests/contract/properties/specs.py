"""A generated model in terms that every framework and the closed form share, and its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

#: The rows of a table of positions, and of one of types.
PLACES: Final = 12
SEGMENTS: Final = 3

#: The term that a layer norm adds to the variance, exact in float32, as which MXNet keeps it in float64 too.
EPSILON: Final = 2.0**-17

#: The kinds of blocks. In `mix` examples interact: half the mean over the batch is subtracted from each.
KINDS: Final = ("linear", "tanh", "attention", "norm", "mix")


@dataclass(frozen=True)
class Block:
    """One block: (example, position, width), or (example, width) after the pooling, in and out."""

    kind: str
    residual: bool = False


@dataclass(frozen=True)
class Spec:
    """A model: tables, blocks, a head.

    Attributes:
        width: the entries of a row, and of the values between blocks.
        positions: whether a row of a table of positions is added.
        types: whether the model takes types, and adds a row of a table of types.
        scale: a factor of the rows of words.
        pool: the number of blocks before the mean over positions; None for an output per position.
        head: "linear" with a bias, "tied" to the table of words, or "none".
        masked: whether the model takes a mask, which attention and the mean respect.
        padding: the row that the table declares as padding, where a framework has that.
        alternative: whether PyTorch's fused attention, Keras 3, a hybridised net or `nnx.jit` is used.
        seed: the seed of the weights.
    """

    vocab: int
    width: int
    positions: bool = False
    types: bool = False
    scale: float | None = None
    blocks: tuple[Block, ...] = ()
    pool: int | None = None
    head: str = "none"
    classes: int = 2
    masked: bool = False
    padding: int | None = None
    dtype: str = "float64"
    alternative: bool = False
    seed: int = 0

    @property
    def mixes(self) -> bool:
        return any(block.kind == "mix" for block in self.blocks)

    @property
    def entries(self) -> int:
        """Return the number of entries of a row of the output."""
        return {"linear": self.classes, "tied": self.vocab, "none": self.width}[self.head]


def weights_of(spec: Spec) -> dict[str, np.ndarray]:
    """Return the weights by name, rounded to the model's dtype, in float64."""
    random, width = np.random.default_rng(spec.seed), spec.width
    shapes: dict[str, tuple[int, ...]] = {"words": (spec.vocab, width)}
    if spec.positions:
        shapes["positions"] = (PLACES, width)
    if spec.types:
        shapes["segments"] = (SEGMENTS, width)
    of_kind: dict[str, dict[str, tuple[int, ...]]] = {
        "linear": {"weight": (width, width), "bias": (width,)},
        "attention": dict.fromkeys(("query", "key", "value"), (width, width)),
        "norm": {"gain": (width,), "shift": (width,)},
    }
    for number, block in enumerate(spec.blocks):
        shapes |= {f"blocks.{number}.{name}": shape for name, shape in of_kind.get(block.kind, {}).items()}
    if spec.head == "linear":
        shapes |= {"head.weight": (width, spec.classes), "head.bias": (spec.classes,)}
    drawn = {
        name: random.normal(size=shape) / np.sqrt(shape[0] if _is_matrix(name) else 1) for name, shape in shapes.items()
    }
    return {name: value.astype(spec.dtype).astype(np.float64) for name, value in drawn.items()}


def _is_matrix(name: str) -> bool:
    return name.endswith(("weight", "query", "key", "value"))
