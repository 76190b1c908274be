"""Models, expected results and processes that the tests of the command line share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import embgrad
from embgrad.loading.user_objects import import_object
from embgrad.testing.reference import ReferenceModel, lookup

MODELS = """
import os, sys, warnings
import numpy as np
from embgrad.testing.reference import ReferenceModel, lookup

def weights(seed=0):
    random = np.random.default_rng(seed)
    return {"E": random.normal(size=(30, 4)).astype(np.float32), "W": random.normal(size=(4, 3)).astype(np.float32)}

def forward(model, input_ids, attention_mask=None):
    rows = lookup(model["E"], input_ids)
    mask = np.ones(input_ids.shape) if attention_mask is None else attention_mask
    return ((rows.tanh() * rows.__class__(mask[..., None].astype(np.float32))).sum(1)) @ model["W"]

def build():
    return ReferenceModel(forward, weights())

def doubled():
    return ReferenceModel(forward, {name: value * (2 if name == "W" else 1) for name, value in weights().items()})

def for_framework(framework):
    return {"reference": build}[framework]()

def pooled(model, input_ids):
    sequence = lookup(model["E"], input_ids).tanh()
    return {"last_hidden_state": sequence, "pooler_output": sequence.mean(1)}

def encoder():
    return ReferenceModel(pooled, weights())

def chatty(model, input_ids, attention_mask=None):
    print("said in Python")
    os.write(1, b"said in C\\n")
    warnings.warn("mind the gap")
    warnings.warn("old", DeprecationWarning)
    return forward(model, input_ids, attention_mask)

def raising(model, input_ids):
    raise RuntimeError("the model\\nbroke")

def interrupted(model, input_ids):
    raise KeyboardInterrupt

talks = ReferenceModel(chatty, weights())
raises = ReferenceModel(raising, weights())
stops = ReferenceModel(interrupted, weights())
model = build()
number = 3

def leaves():
    sys.exit(0)

def needs(size, depth=3):
    return build()

def twice(model, inputs):
    return forward(model, inputs["input_ids"]) * 2.0

def tokenizer(text, other=None):
    return [1 + len(word) % 29 for word in f"{text} {other or ''}".split()]
"""

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "grip", "##ping", "film", "<script>", "é", "never", "again", "."]


def child(*arguments: str, stdin: bytes = b"", **environment: str) -> SimpleNamespace:
    """Run a command in its own process."""
    done = subprocess.run(
        [sys.executable, "-m", "embgrad", *arguments],
        input=stdin,
        env={**os.environ, **environment},
        capture_output=True,
        timeout=300,
        check=False,
    )
    return SimpleNamespace(code=done.returncode, out=done.stdout, err=done.stderr.decode("utf-8", "replace"))


ASK = ("-m", "models.py:build", "--ids", "ids.json")


def expected(at: Any = "word") -> Any:
    random = np.random.default_rng(0)
    weights = {"E": random.normal(size=(30, 4)), "W": random.normal(size=(4, 3))}

    def forward(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Any:
        rows = lookup(model["E"], input_ids)
        return ((rows.tanh() * rows.__class__(attention_mask[..., None].astype(np.float32))).sum(1)) @ model["W"]

    model = ReferenceModel(forward, {name: value.astype(np.float32) for name, value in weights.items()})
    batch = embgrad.TokenBatch([[4, 5, 6], [7, 8, 0]], [[1, 1, 1], [1, 1, 0]])
    return embgrad.gradients(model, batch, embgrad.CrossEntropy([0, 2]), at=at)


TEXTS = ("-m", "models.py:build", "--tokenizer", "vocab.txt")


def built(directory: Path) -> Any:
    """Return the model that the options name."""
    return import_object(f"{directory}/models.py:build")()


Command = Callable[..., SimpleNamespace]


def refused(done: SimpleNamespace) -> str:
    """Return the message of a command that failed and printed no result, in one line."""
    assert (done.code, done.out) == (2, ""), done.err
    return " ".join(done.err.split())


def said(command: Command, folder: str, *options: str) -> str:
    """Return the message of a command about a folder that it cannot load, in one line."""
    return refused(command("gradients", "-m", folder, "--ids", "ids.json", *options))


def configured(directory: Path, **config: Any) -> str:
    """Make a checkpoint folder without weights, and return its name."""
    (directory / "m").mkdir()
    (directory / "m" / "config.json").write_text(json.dumps(config))
    return "m"
