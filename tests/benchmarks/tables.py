"""The tables of a batch's examples: from one backward pass against one for each example, in time and in bytes.

`python -m tests.benchmarks.tables [--examples 32] [--positions 128] [--layers 2]`, in PyTorch: ratios within one process, the
least of several rounds. The table is MiniLM's, 30,522 × 384.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("USE_TF", "0")

import numpy as np
import torch

import embgrad
from embgrad.common.timing import least_times
from tests.benchmarks.cases import ONCE, SPLIT, SPLIT_BY_HAND, Case, drawn_bert
from tests.benchmarks.measuring import MOST_DISTANCE, distance
from tests.benchmarks.modes_torch import with_rows_apart

VOCAB, DIM = 30_522, 384


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in {"examples": 32, "positions": 128, "layers": 2, "rounds": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--found", type=Path, help="write the figures here, as JSON")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = drawn_bert(Path(folder) / "bert", layers=given.layers, dim=DIM, vocab=VOCAB)
        model = embgrad.load_bert(checkpoint, "torch")
        batch = Case(checkpoint, given.examples, given.positions).batch()
    objective = embgrad.Sum(output="pooled")
    once = embgrad.gradients(model, batch, objective)
    if (apart := distance(once.values, split_by_hand(model, batch))) > MOST_DISTANCE:
        raise RuntimeError(f"embgrad.gradients is {apart:.1e} from code by hand")

    def split() -> None:
        embgrad.gradients(model, batch, objective, split=True).per_example()

    times = least_times(
        {
            ONCE: lambda: embgrad.gradients(model, batch, objective).per_example(),
            "per_example() alone": once.per_example,
            SPLIT: split,
            SPLIT_BY_HAND: lambda: split_by_hand(model, batch),
            "table_norms": lambda: embgrad.table_norms(once),
            "table_products": lambda: embgrad.table_products(once),
        },
        given.rounds,
    )
    unit = times[ONCE]
    print(
        f"{given.examples} × {given.positions}, table {VOCAB} × {DIM}, {given.layers} layers, least of {given.rounds}:"
    )
    for name, seconds in times.items():
        print(f"  {name:<40} {seconds / unit:8.3f}")
    sparse, dense = sum(one.nbytes for one in once.per_example()), given.examples * VOCAB * DIM * 4
    print(f"  by hand split takes {times[SPLIT_BY_HAND] / unit:.1f} times as long; B/2 is {given.examples / 2:g}")
    print(f"  the tables take {sparse / 2**20:.1f} MiB, dense {dense / 2**20:.0f}: {dense / sparse:.0f} times as much")
    if given.found:
        shape = {"examples": given.examples, "positions": given.positions, "vocab": VOCAB, "dim": DIM}
        found = {**shape, "times": times, "sparse": sparse / 2**20, "dense": dense / 2**20}
        given.found.write_text(json.dumps([found]), encoding="utf-8")
    return 0


def split_by_hand(model: Any, batch: embgrad.TokenBatch) -> np.ndarray:
    """The rows' gradients by a backward pass an example through one graph; no table is made of them."""
    inputs = {name: torch.tensor(value) for name, value in batch.to_huggingface().items()}
    outputs, rows = with_rows_apart(model, inputs)
    values = outputs.pooler_output.sum(1)
    pulled = (torch.autograd.grad(one, rows, retain_graph=True)[0] for one in values)
    return np.stack([one[example].numpy() for example, one in enumerate(pulled)])


if __name__ == "__main__":
    sys.exit(main())
