"""Streams on real models: each framework's results are those of its `gradients`, and a killed run ends in the same bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

import embgrad
from embgrad.loading.minilm import minilm_folder
from tests.support.sampling import slow

FRAMEWORKS = ("torch", "tensorflow", "gluon", "jax")
OBJECTIVE = embgrad.Sum(output="pooled")


def texts(count: int) -> list[Any]:
    words = [
        "a", "gripping", "film", "that", "nobody", "in", "the", "audience", "understood", "unputdownable",
        "nevertheless",
    ]  # fmt: skip
    random = np.random.default_rng(0)
    made: list[Any] = [" ".join(random.choice(words, random.integers(1, 30))) for _ in range(count)]
    made[3] = (made[3], made[4])
    return made


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tokenizers.Tokenizer.from_file(f"{minilm_folder()}/tokenizer.json")


#: What a stream does is the same in each framework: tests/unit/streaming shows it with the reference.
@pytest.fixture(scope="module", params=["torch", *(slow(framework) for framework in FRAMEWORKS[1:])])
def model(request: pytest.FixtureRequest) -> Any:
    return embgrad.zoo.load_bert(minilm_folder(), request.param)


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def test_a_stream_is_gradients_batch_by_batch(model: Any, tokenizer: Any) -> None:
    given = texts(14)
    found = list(
        embgrad.stream(model, iter(given), OBJECTIVE, tokenizer=tokenizer, batch_size=4, at=["word", "layer.-1"])
    )
    for start, results in zip(range(0, 14, 4), found, strict=True):
        own = given[start : start + 4]
        expected = embgrad.gradients(model, own, OBJECTIVE, tokenizer=tokenizer, at=["word", "layer.-1"])
        for name, one in expected.items():
            np.testing.assert_array_equal(results[name].ids, one.ids)
            assert relative(results[name].values, one.values) < 1e-6
            assert results[name].tokens == one.tokens


def test_the_sum_of_a_stream_is_the_table_of_all_texts(model: Any, tokenizer: Any) -> None:
    total = embgrad.stream(model, texts(14), OBJECTIVE, tokenizer=tokenizer, batch_size=4).table()
    whole = embgrad.gradients(model, texts(14), OBJECTIVE, tokenizer=tokenizer).table()
    np.testing.assert_array_equal(total.rows[total.rows > 0], whole.rows[whole.rows > 0])
    assert relative(total.to_dense(), whole.to_dense()) < 1e-5


RUN = """
import sys, time
import tokenizers, embgrad
from embgrad.loading.minilm import minilm_folder
from embgrad.streaming import writer
from tests.cross.parity.test_stream import OBJECTIVE, texts
writer.MOST_RESULTS = 2
framework, folder = sys.argv[1:]
model = embgrad.zoo.load_bert(minilm_folder(), framework)
tokenizer = tokenizers.Tokenizer.from_file(f"{minilm_folder()}/tokenizer.json")
embgrad.stream(model, texts(60), OBJECTIVE, tokenizer=tokenizer, batch_size=2, to=folder).finish()
"""


@pytest.mark.slow  # tests/unit/streaming/test_folder.py kills a run of the reference
@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_killed_run_ends_in_the_same_bytes(framework: str, tmp_path: Path) -> None:
    def begun(folder: Path) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
        command = [sys.executable, "-c", RUN, framework, str(folder)]
        return subprocess.Popen(command, cwd=Path(__file__).parents[3], env=environment)

    child = begun(tmp_path / "parts")
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and _finished(tmp_path / "parts") < 4:
        assert child.poll() is None
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert 4 <= _finished(tmp_path / "parts") < 30
    for folder in ("parts", "whole"):
        assert begun(tmp_path / folder).wait() == 0
    assert _files(tmp_path / "parts") == _files(tmp_path / "whole")
    found = embgrad.open_stream(tmp_path / "parts")
    assert (len(found), found.examples, found.complete) == (30, 60, True)
    assert found[3].provenance["backend"] == framework


def _finished(folder: Path) -> int:
    return len(embgrad.open_stream(folder)) if (folder / "manifest.json").exists() else 0


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != ".lock"}
