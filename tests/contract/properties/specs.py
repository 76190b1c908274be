"""What a generated model is, in words that every framework and the closed form read alike, and its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

__all__ = ["EPSILON", "FUNCTIONS", "KINDS", "MODULES", "OTHERS", "PLACES", "SEGMENTS", "Block", "Spec", "weights_of"]

#: The rows of a table of positions, and of one of types.
PLACES: Final = 12
SEGMENTS: Final = 3

#: What a layer norm adds to the variance: a number that float32 holds exactly, as which MXNet keeps it in float64 too.
EPSILON: Final = 2.0**-17

#: The kinds of blocks; in `mix` examples meet: each is given less half the mean over the batch.
KINDS: Final = ("linear", "tanh", "attention", "norm", "mix")

#: The ways to write a model down, of which each framework has its own: as modules, as functions of bare parameters, and
#: compiled or of another family of classes where there is one.
MODULES, FUNCTIONS, OTHERS = "modules", "functions", "others"


@dataclass(frozen=True)
class Block:
    """One block: (example, position, width), or (example, width) behind the pooling, in and out.

    Attributes:
        kind: one of KINDS.
        residual: whether what it is given is added to what it makes.
    """

    kind: str
    residual: bool = False


@dataclass(frozen=True)
class Spec:
    """A model: tables, blocks, a head.

    Attributes:
        vocab: the rows of the table of words.
        width: the entries of a row, and of all that goes from block to block.
        positions: whether a row of a table of positions is added, counted from the left.
        types: whether a row of a table of types is added, and the model takes types.
        scale: by what the rows of words are multiplied before that; None for nothing.
        blocks: in order.
        pool: how many blocks come before the mean over positions; None for no mean, and an output for each position.
        head: "linear" with a bias, "tied" to the table of words, or "none".
        classes: of the linear head.
        masked: whether the model takes a mask, which attention and the mean then keep to.
        padding: the row that the table is declared to have for padding, where a framework can say so; None for none.
        dtype: "float32" or "float64".
        form: how it is written down, see above.
        seed: of the weights.
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
    form: str = MODULES
    seed: int = 0

    @property
    def meets(self) -> bool:
        return any(block.kind == "mix" for block in self.blocks)

    @property
    def entries(self) -> int:
        """How many entries a row of the output has."""
        return {"linear": self.classes, "tied": self.vocab, "none": self.width}[self.head]

    @property
    def inputs(self) -> tuple[str, ...]:
        named = {"input_ids": True, "attention_mask": self.masked, "token_type_ids": self.types}
        return tuple(name for name, taken in named.items() if taken)

    def pooled(self, block: int) -> bool:
        """Whether the block comes behind the mean over positions."""
        return self.pool is not None and self.pool <= block


def weights_of(spec: Spec) -> dict[str, np.ndarray]:
    """The weights by name, as the model's dtype holds them, in float64."""
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
