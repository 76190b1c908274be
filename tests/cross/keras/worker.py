"""Run everything of this folder on the Keras backend that KERAS_BACKEND names, and save the results as files.

KERAS_BACKEND=torch python -m tests.cross.keras.worker <folder of weights> <folder of a checkpoint> <folder of results>
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Final

import embgrad
from tests.conftest import slow_is_asked_for
from tests.support import keras_hub_zoo as zoo

__all__ = ["BACKENDS", "COMPARED", "OFTEN", "bisected", "file_of", "run", "weights_of"]

#: The Keras backends under test, of which the others are compared with the first.
BACKENDS: Final = ("tensorflow", "torch", "jax")

#: One model of each family: a task has its backbone inside.
COMPARED: Final = (
    *("BertTextClassifier", "RobertaMaskedLM", "DistilBertBackbone", "GPT2CausalLM"),
    *("GemmaCausalLM", "Gemma3CausalLM", "LlamaCausalLM"),
)
#: The models, and the sides on which their batches are padded, that are compared in each run; all others are slow.
OFTEN: Final = (("BertTextClassifier", "right"), ("GPT2CausalLM", "left"), ("GemmaCausalLM", None))

ROOT: Final = Path(__file__).parents[3]


def run(backend: str, *arguments: object) -> None:
    """Run this module in a process of its own, since a process has one Keras backend."""
    command = [sys.executable, "-m", "tests.cross.keras.worker", *map(str, arguments)]
    paths = [str(ROOT), str(ROOT / "backends"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def weights_of(folder: Path, name: str) -> Path:
    """Return the file of a model's weights."""
    return folder / f"{name}.npz"


def file_of(folder: Path, name: str, side: str | None, role: str) -> Path:
    """Return the file of the result at a role, for a batch that is padded on a side."""
    return folder / f"{name}-{side}-{role}.safetensors"


def bisected(folder: Path) -> Path:
    """Return the file of what bisections found."""
    return folder / "bisected.json"


def main(weights: Path, checkpoint: Path, results: Path) -> None:
    """Save for models, batches and roles the result of the plain call, with the weights of the files, and bisections."""
    from tests.cross.keras import bisecting, products

    slow = slow_is_asked_for()
    products.main()
    bisecting.main(
        checkpoint, bisected(results), bisecting.CHANGES if slow else bisecting.changes_on(os.environ["KERAS_BACKEND"])
    )
    warnings.filterwarnings("ignore", "the batch is padded on the left", embgrad.EmbgradWarning)
    for name, side in itertools.product(COMPARED, zoo.SIDES) if slow else OFTEN:
        entry = zoo.MODELS[name]
        model = entry.build()
        zoo.load(model, weights_of(weights, name))
        batch = zoo.batch(model, side)
        objective = zoo.objective(name, batch["padding_mask"])
        found = embgrad.gradients(model, batch, objective, at=sorted(entry.roles))
        for role, result in found.items():
            result.save(file_of(results, name, side, role))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
