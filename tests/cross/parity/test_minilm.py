"""The each framework on one checkpoint's real weights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

import embgrad
from embgrad.cli.demo import TEXTS
from embgrad.loading.minilm import minilm_folder

FRAMEWORKS = ("torch", "tensorflow", "gluon", "jax", "keras")


@pytest.fixture(scope="module")
def folder() -> Path:
    return minilm_folder()


@pytest.fixture(scope="module")
def models(folder: Path) -> dict[str, Any]:
    return {framework: embgrad.zoo.load_bert(folder, framework) for framework in FRAMEWORKS}


@pytest.fixture(scope="module")
def batch(folder: Path) -> embgrad.TokenBatch:
    return embgrad.encode(TEXTS, tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")))


@pytest.mark.parametrize(
    "objective",
    [
        embgrad.Sum(output="pooled"),
        embgrad.Projection(np.random.default_rng(0).normal(size=384), output="sequence", position=0),
        embgrad.Projection(np.random.default_rng(1).normal(size=384), output="sequence"),
        embgrad.Logit([3, 1, 4, 1], output="sequence", position=-1),
    ],
    ids=["sum of pooled", "projection of the first position", "projection of all positions", "one entry of the last"],
)
def test_the_same_gradient_in_all_frameworks(
    models: dict[str, Any], batch: embgrad.TokenBatch, objective: embgrad.Objective
) -> None:
    results = {name: embgrad.gradients(model, batch, objective) for name, model in models.items()}
    for name in FRAMEWORKS[1:]:
        comparison = embgrad.compare(results["torch"], results[name])
        assert comparison.figures.relative_l2 < 5e-6
        assert min(one.cosine for one in comparison.per_example) > 1 - 1e-9
    for result in results.values():
        assert batch.padded
        assert result.pad_leak < 1e-7
        np.testing.assert_array_equal(result.activations, results["torch"].activations)


def test_gluon_loads_a_checkpoint_without_the_other_frameworks(folder: Path) -> None:
    script = (
        "import sys, embgrad; model = embgrad.zoo.load_bert(sys.argv[1], 'gluon');"
        "g = embgrad.gradients(model, [[101, 7592, 102]], embgrad.Sum(output='pooled'));"
        "print(bool(g.values.any()), [name for name in ('torch', 'tensorflow', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "True []"


@pytest.mark.slow
def test_the_demo_gives_the_same_figures_twice() -> None:
    def figures() -> list[str]:
        done = subprocess.run(
            [sys.executable, "-m", "embgrad", "demo", "--frameworks", "torch"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return [line for line in done.stdout.splitlines() if line.startswith("norm of the gradient")]

    first = figures()
    assert len(first) == 1
    assert figures() == first
