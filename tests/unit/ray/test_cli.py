"""`embgrad gradients --ray`, and what it refuses before it starts Ray."""

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
import pyarrow.parquet
import pytest
import ray

from embgrad.cli import main
from tests.unit.ray import models
from tests.unit.ray.test_runs import of_one_process

pytestmark = pytest.mark.usefixtures("cluster")

Items = Callable[..., list[dict[str, Any]]]
Command = Callable[..., SimpleNamespace]


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*arguments: str) -> SimpleNamespace:
        capsys.readouterr()
        code = main(arguments)
        actual = capsys.readouterr()
        return SimpleNamespace(code=code, out=actual.out, err=actual.err)

    return run


@pytest.fixture
def child(tmp_path: Path) -> Command:
    def run(*arguments: str, code: str = "") -> SimpleNamespace:
        address = ray.get_runtime_context().gcs_address
        script = f"import sys; {code}\nimport embgrad.cli; sys.exit(embgrad.cli.main({list(arguments)!r}))"
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=tmp_path,
            env={**os.environ, "RAY_ADDRESS": address},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        return SimpleNamespace(code=done.returncode, out=done.stdout, err=done.stderr)

    return run


def test_a_file_becomes_a_folder(child: Command, items: Items, tmp_path: Path) -> None:
    rows = items(30)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = ("gradients", "--ray", "-m", "tests.unit.ray.models:reference", "-f", "rows.jsonl", "--ids", "ids_")
    done = child(*asked, "--labels", "label", "--batch-size", "4", "-o", "out", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out) == {"rows_in": 30, "rows_out": 30, "folder": "out"}
    expected = of_one_process(models.reference(), rows)
    for row in pyarrow.parquet.read_table(tmp_path / "out").to_pylist():
        own = len(row["ids_"])
        np.testing.assert_allclose(row["saliency"], expected.saliency()[row["key"], :own], rtol=1e-10)
    again = child(*asked, "--labels", "label", "-o", "out")
    assert again.code == 2
    assert "error: out holds" in again.err
    assert ray.is_initialized()
    assert ray.cluster_resources()["CPU"] == 2  # it goes on


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-f", "a.jsonl", "--labels", "label"], "--ray needs --output"),
        (["-o", "out", "--labels", "label"], "--ray needs --file"),
        (["-f", "a.jsonl", "-o", "out"], "--ray needs --objective"),
        (["-f", "a.jsonl", "-o", "out", "--labels", "l", "-t", "text"], "--text cannot be used with --ray"),
        (["-f", "a.jsonl", "-o", "out", "--labels", "l", "--split"], "--split cannot be used with --ray"),
        (["-f", "a.jsonl", "-o", "out", "--labels", "l", "--give", "table"], "Did you mean 'tables'"),
        (["-f", "a.jsonl", "-o", "out", "--labels", "l", "--at", "word", "--at", "type"], "expected one --at"),
        (["-f", "a.jsonl", "-o", "out", "--labels", "l", "--ids", "i", "--column", "c"], "pass only one"),
        (["-f", "a.jsonl", "-o", "out", "--labels", "l", "--objective", "Sum()"], "--labels applies only to"),
        (
            ["-f", "a.jsonl", "-o", "out", "--labels", "l", "--call", "foo"],
            "--call 'foo': expected path/to/file.py:function",
        ),
        (
            ["-f", "a.jsonl", "-o", "out", "--labels", "l", "--call", "no.py:f"],
            "no.py does not exist: expected a Python file",
        ),
    ],
)
def test_options_that_exclude_each_other(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr("embgrad.cli.ray_run._cluster", None)  # nothing is started
    assert main(["gradients", "--ray", "-m", "tests.unit.ray.models:reference", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_rows_and_models_are_found_before_ray_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from embgrad.cli import main

    monkeypatch.setattr("embgrad.cli.ray_run._cluster", None)  # nothing is started
    (tmp_path / "rows.jsonl").write_text('{"text": "one", "label": 0}')
    asked = ["gradients", "--ray", "--labels", "label", "-o", str(tmp_path / "out")]
    assert main([*asked, "-m", "tests.unit.ray.models:reference", "-f", "no.parquet"]) == 2
    assert "--file 'no.parquet' does not exist: expected a file or folder of rows" in capsys.readouterr().err
    assert main([*asked, "-m", "nowhere", "-f", str(tmp_path / "rows.jsonl")]) == 2
    assert "--model 'nowhere' does not exist" in capsys.readouterr().err


@pytest.mark.slow
def test_a_prefix_and_truncated_texts(command: Command, items: Items, tmp_path: Path) -> None:
    rows = [{**row, "ids": [0], "text": row["text"] if row["key"] else "w1"} for row in items(5, shortest=6)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    models.tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "texts.txt").write_text("".join(row["text"] + "\n" for row in rows))
    model = ("gradients", "-m", "tests.unit.ray.models:reference", "--framework", "reference")
    asked = (*model, "--tokenizer", "tokenizer.json", "--max-length", "5")
    plain = command(*asked, "-f", "texts.txt", "--labels", ",".join(str(row["label"]) for row in rows))
    assert plain.code == 0, plain.err
    (warning,) = [line for line in plain.err.splitlines() if line.startswith("warning")]
    cut = sum(len(row["text"].split()) - 3 for row in rows[1:])
    assert warning == f"warning: {cut} tokens were cut off from 4 of 5 examples, which keep at most 5 tokens"
    asked = (*asked, "--ray", "-f", "rows.jsonl", "--labels", "label", "-o", "out")
    taken = command(*asked)
    assert taken.code == 2
    assert "has a column 'ids' already" in taken.err
    done = command(*asked, "--prefix", "g_")
    assert done.code == 0, done.err
    assert warning in done.err.splitlines()
    for row in pyarrow.parquet.read_table(tmp_path / "out").to_pylist():
        assert row["ids"] == [0]
        assert len(row["g_ids"]) == len(row["g_saliency"]) == (5 if row["key"] else 3)
        assert row["g_truncated"] == max(len(row["text"].split()) - 3, 0)
    done = command(*asked[:-1], "again", "--prefix", "g_", "--max-length", "50")
    assert (done.code, "cut off" in done.err) == (0, False)


def test_texts_without_a_tokenizer_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "texts.jsonl").write_text('{"text": "w1 w2", "label": 0}\n')
    asked = ("gradients", "--ray", "-m", "tests.unit.ray.models:reference", "--labels", "label")
    assert main([*asked, "-f", str(tmp_path / "texts.jsonl"), "-o", str(tmp_path / "out")]) == 2
    said = "error: texts need a tokenizer, and the model has no folder that holds one: name it with --tokenizer, or give --ids"
    reported = capsys.readouterr().err
    assert said in " ".join(reported.split())
    assert "embgrad explain" not in reported  # the message says it in full


def test_a_missing_ray_says_what_to_install(command: Command, child: Command) -> None:
    asked = ("gradients", "-m", "tests.unit.ray.models:reference", "-f", "a.jsonl", "-o", "out", "--labels", "label")
    done = child(*asked, "--ray", code="sys.modules['ray'] = None")
    assert done.code == 2
    assert done.err.startswith("error: embgrad.ray needs Ray Data")
    assert "pip install 'embgrad[ray]'" in done.err
    assert command(*asked, "--workers", "3").err.startswith("error: --workers requires --ray")
    assert command(*asked, "--prefix", "g_").err.startswith("error: --prefix requires --ray")
