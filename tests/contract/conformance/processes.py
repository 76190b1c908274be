"""One backend in forked and in spawned processes, as a data loader or a pool has them: each gives the same bits."""

from __future__ import annotations

import multiprocessing
import sys
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

import embgrad
from embgrad.testing.examples import example_batch, example_weights

#: How many processes of each kind: a spawned one imports the framework anew.
WORKERS = {"fork": 2, "spawn": 1}


@cache
def _model(backend: str) -> Any:
    """The process's own: a forked one has that of the process that it was forked from."""
    return import_module(f"tests.contract.conformance.harness_{backend}").Harness().build("hidden", example_weights())


def gradient(backend: str) -> np.ndarray:
    return embgrad.gradients(_model(backend), example_batch(), embgrad.Sum()).values


def main(backend: str) -> None:
    """Print how the processes were started whose gradients are those of this one, or where the framework refuses any."""
    expected = gradient(backend)
    for method, count in WORKERS.items():
        with multiprocessing.get_context(method).Pool(count) as pool:
            try:
                found = pool.map(gradient, [backend] * (2 * count))
            except RuntimeError as error:  # of PyTorch's own, in some builds
                if "fork-based multiprocessing" not in str(error):
                    raise
                print(f"{method}:refused")
                continue
        if all(np.array_equal(one, expected) for one in found) and np.array_equal(gradient(backend), expected):
            print(method)


if __name__ == "__main__":
    main(sys.argv[1])
