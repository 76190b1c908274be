"""The tables of a batch's examples, in time and in bytes: one backward pass compared with one per example, in PyTorch.

The table is MiniLM's, 30,522 × 384.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import embgrad
from tests.benchmarks.cases import ONCE, SPLIT, SPLIT_BY_HAND, Case, drawn_bert
from tests.benchmarks.measuring import MOST_DISTANCE, distance
from tests.benchmarks.modes_torch import with_separate_rows
from tests.benchmarks.timing import least_times

VOCAB, DIM, LAYERS, ROUNDS = 30_522, 384, 2, 3


def tables_of_examples(examples: int, positions: int) -> list[dict[str, Any]]:
    """Return the times and the sizes, MiB, of each way."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = drawn_bert(Path(folder) / "bert", layers=LAYERS, dim=DIM, vocab=VOCAB)
        model = embgrad.zoo.load_bert(checkpoint, "torch")
        batch = Case(checkpoint, examples, positions).batch()
    objective = embgrad.Sum(output="pooled")
    once = embgrad.gradients(model, batch, objective)
    if (difference := distance(once.values, split_by_hand(model, batch))) > MOST_DISTANCE:
        raise RuntimeError(f"embgrad.gradients differs from code by hand by {difference:.1e}")
    times = least_times(
        {
            ONCE: lambda: embgrad.gradients(model, batch, objective).per_example(),
            "per_example() alone": once.per_example,
            SPLIT: lambda: embgrad.gradients(model, batch, objective, split=True).per_example(),
            SPLIT_BY_HAND: lambda: split_by_hand(model, batch),
            "table_norms": lambda: embgrad.tables.table_norms(once),
            "table_products": lambda: embgrad.tables.table_products(once),
        },
        ROUNDS,
    )
    sizes = {
        "sparse": sum(table.nbytes for table in once.per_example()) / 2**20,
        "dense": examples * VOCAB * DIM * 4 / 2**20,
    }
    return [{"examples": examples, "positions": positions, "vocab": VOCAB, "dim": DIM, "times": times, **sizes}]


def split_by_hand(model: Any, batch: embgrad.TokenBatch) -> np.ndarray:
    """Return the rows' gradients by one backward pass per example through one graph, without tables."""
    inputs = {name: torch.tensor(value) for name, value in batch.to_huggingface().items()}
    outputs, rows = with_separate_rows(model, inputs)
    pulled = (torch.autograd.grad(value, rows, retain_graph=True)[0] for value in outputs.pooler_output.sum(1))
    return np.stack([gradient[example].numpy() for example, gradient in enumerate(pulled)])
