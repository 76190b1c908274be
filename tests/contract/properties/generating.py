"""Strategies for models, batches that fit them, and objectives that fit both."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from hypothesis import strategies as st

from tests.contract.properties.cases import Case
from tests.contract.properties.closed_form import Batch
from tests.contract.properties.goals import IGNORED, Goal
from tests.contract.properties.goals import KINDS as GOALS
from tests.contract.properties.specs import KINDS, SEGMENTS, Block, Spec

#: The most examples and positions of a batch, and the most blocks.
EXAMPLES, POSITIONS, BLOCKS = 4, 5, 4

#: The widths, in the order in which hypothesis simplifies examples; a layer norm of one entry is constant.
WIDTHS: Final = (2, 3, 4, 5, 6, 1)

#: The blocks in which examples do not interact.
ALONE: Final = tuple(kind for kind in KINDS if kind != "mix")

seeds = st.integers(0, 2**16)


@st.composite
def specs(
    draw: st.DrawFn, *, mixes: bool = False, heads: tuple[str, ...] = ("linear", "tied", "none"), **fixed: Any
) -> Spec:
    vocab = draw(st.integers(3, 12))
    pool = draw(st.none() | st.integers(0, BLOCKS))
    kinds = draw(st.lists(st.sampled_from(ALONE), max_size=BLOCKS))
    if mixes:
        kinds.insert(draw(st.integers(0, len(kinds))), "mix")
    pool = None if pool is None else min(pool, len(kinds))
    if pool is not None:  # no attention where there are no positions
        kinds = [kind if number < pool or kind != "attention" else "linear" for number, kind in enumerate(kinds)]
    drawn = Spec(
        vocab=vocab,
        width=draw(st.sampled_from(WIDTHS)),
        positions=draw(st.booleans()),
        types=draw(st.booleans()),
        scale=draw(st.sampled_from([None, 0.5, 3.0])),
        blocks=tuple(Block(kind, draw(st.booleans())) for kind in kinds),
        pool=pool,
        head=draw(st.sampled_from(heads)),
        classes=draw(st.integers(1, 4)),
        masked=draw(st.booleans()),
        padding=draw(st.none() | st.just(0) | st.integers(0, vocab - 1)),  # Keras has that of row 0 alone
        dtype=draw(st.sampled_from(["float64", "float32"])),
        alternative=draw(st.booleans()),
        seed=draw(seeds),
    )
    return Spec(**{**vars(drawn), **fixed})


@st.composite
def batches(draw: st.DrawFn, spec: Spec, least: int = 1) -> Batch:
    """Return a batch; each example has a real position, and padding lies anywhere."""
    examples, positions = draw(st.integers(least, EXAMPLES)), draw(st.integers(1, POSITIONS))
    ids = _array(draw, st.integers(0, spec.vocab - 1), (examples, positions))
    mask = None
    if spec.masked:
        mask = _array(draw, st.integers(0, 1), (examples, positions))
        mask[np.arange(examples), _array(draw, st.integers(0, positions - 1), (examples,))] = 1
    types = _array(draw, st.integers(0, SEGMENTS - 1), (examples, positions)) if spec.types else None
    return Batch(ids, mask, types)


@st.composite
def goals(draw: st.DrawFn, spec: Spec, batch: Batch) -> Goal:
    kind = draw(st.sampled_from([kind for kind in GOALS if kind != "cross-entropy" or spec.entries > 1]))
    last = spec.pool is None and draw(st.booleans())
    position = -1 if last else None
    examples, positions = batch.ids.shape
    if kind == "projection":
        vectors = np.random.default_rng(draw(seeds)).normal(size=(examples, spec.entries))
        return Goal(kind, vectors, position)
    label = st.integers(0, spec.entries - 1)
    if kind == "cross-entropy" and spec.pool is None and not last:
        labels = _array(draw, label, (examples, positions))
        left_out = st.lists(st.integers(0, labels.size - 1), max_size=labels.size // 3)
        labels.ravel()[draw(left_out)] = IGNORED
        return Goal(kind, labels, position)
    return Goal(kind, _array(draw, label, (examples,)), position)


@st.composite
def cases(draw: st.DrawFn, *, least: int = 1, **options: Any) -> Case:
    """Return a case with at least so many examples, and with options of `specs`."""
    spec = draw(specs(**options))
    batch = draw(batches(spec, least))
    return Case(spec, batch, draw(goals(spec, batch)))


def _array(draw: st.DrawFn, entries: st.SearchStrategy[int], shape: tuple[int, ...]) -> np.ndarray:
    size = int(np.prod(shape))
    return np.array(draw(st.lists(entries, min_size=size, max_size=size)), np.int64).reshape(shape)
