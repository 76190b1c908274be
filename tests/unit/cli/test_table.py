"""`embgrad attribute --to`: the rows of a table in a file, the same for any batches, and what is refused before a model runs."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyarrow import parquet

import embgrad
from embgrad.results import table_file
from tests.unit.cli.commands import ASK, TEXTS, refused

SENTENCES = ["a gripping film", "film", "a film a film", "gripping", "again a film"]
GIVEN = (*TEXTS, "-f", "texts.txt", "--objective", "Logit(1)")
METHODS = ("--method", "input-x-gradient", "--method", "saliency")


@pytest.fixture(autouse=True)
def texts(directory: Path) -> None:
    (directory / "texts.txt").write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")


def saved(command: Any, *options: str) -> pd.DataFrame:
    """Return the table of the attributions that the command writes with --output."""
    done = command("attribute", *GIVEN, *METHODS, *options, "-o", "a.safetensors")
    assert done.code == 0, done.err
    return embgrad.results.Attributions(embgrad.load("a.safetensors")).to_pandas()


@pytest.mark.parametrize("size", ["1", "2", "32"])
def test_the_rows_are_those_of_the_attributions_in_memory(command: Any, size: str) -> None:
    done = command("attribute", *GIVEN, *METHODS, "--batch-size", size, "--to", "scores.parquet")
    assert done.code == 0, done.err
    expected = saved(command)
    table = pd.read_parquet("scores.parquet")
    assert list(table.columns) == list(expected.columns)
    assert table["score"].to_numpy() == pytest.approx(expected["score"].to_numpy(), rel=1e-5)
    for name in ("method", "example", "position", "id", "token", "word"):
        assert table[name].tolist() == expected[name].tolist()
    assert table["start"].isna().tolist() == expected["start"].isna().tolist()
    assert done.out.splitlines() == [f"{len(table)} rows of 5 examples", "written to scores.parquet"]


def test_csv_has_the_same_rows_and_every_digit(command: Any) -> None:
    for name in ("scores.parquet", "scores.csv"):
        assert command("attribute", *GIVEN, "--method", "saliency", "--words", "--to", name).code == 0
    with open("scores.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    expected = parquet.read_table("scores.parquet").to_pylist()
    assert [float(row["score"]) for row in rows] == [row["score"] for row in expected]
    assert [row["word"] for row in rows] == [row["word"] for row in expected]
    assert "token" not in rows[0]
    assert {row["start"] for row in rows if row["word"] == "[CLS]"} <= {""}


def test_the_file_is_written_beside_others_and_reported_as_json(command: Any) -> None:
    done = command("attribute", *GIVEN, "--json", "--to", "scores.parquet")
    assert json.loads(done.out) == {
        "framework": "reference",
        "examples": 5,
        "rows": len(pd.read_parquet("scores.parquet")),
        "table": "scores.parquet",
    }
    done = command("attribute", *GIVEN, "--to", "both.parquet", "--html", "page.html", "-o", "a.safetensors")
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == "written to both.parquet"
    both, alone = pd.read_parquet("both.parquet"), pd.read_parquet("scores.parquet")
    np.testing.assert_allclose(both["score"], alone["score"], rtol=1e-5)
    assert both.drop(columns="score").equals(alone.drop(columns="score"))


def test_ids_have_rows_too(command: Any) -> None:
    done = command(
        "attribute", "-m", "models.py:build", "--ids", "ids.json", "--objective", "Logit(1)", "--to", "i.csv"
    )
    assert done.code == 0, done.err
    assert pd.read_csv("i.csv")["id"].tolist() == [4, 5, 6, 7, 8]


def test_many_rows_are_compressed_in_groups(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_file, "GROUP", 10)
    assert command("attribute", *GIVEN, "--batch-size", "2", "--to", "scores.parquet").code == 0
    file = parquet.ParquetFile("scores.parquet")
    assert file.num_row_groups > 1
    assert file.read()["example"].to_pylist() == sorted(file.read()["example"].to_pylist())
    assert file.read()["example"].to_pylist()[-1] == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--to", "scores.txt"),
            "--to: the file of a table is 'scores.txt': expected a name that ends in .parquet or .csv",
        ),
        (("--to", "-"), "--to is '-': expected the name of a file that ends in .parquet or .csv"),
        (("--to", "no/scores.csv"), "--to 'no/scores.csv': there is no folder 'no'"),
        (("--words",), "--words says what the rows of --to stand for: add --to TABLE, or remove it"),
    ],
)
def test_a_table_that_cannot_be_written_is_refused_before_the_model_is_loaded(
    command: Any, options: tuple[str, ...], message: str
) -> None:
    assert message in refused(command("attribute", "-m", "no_such.py:model", "-t", "a film", *options))


def test_a_missing_package_is_refused_before_the_model_is_loaded(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = command("attribute", "-m", "no_such.py:model", "-t", "a film", "--to", "scores.parquet")
    message = refused(done)
    assert "--to: Parquet needs the package 'pyarrow'" in message
    assert "pip install 'embgrad[table]'" in message
    assert command("attribute", *GIVEN, "--to", "scores.csv").code == 0


@pytest.mark.parametrize("name", ["scores.csv", "scores.parquet"])
def test_a_file_is_there_whole_or_not_at_all(command: Any, directory: Path, name: str) -> None:
    done = command("attribute", "-m", "models.py:raises", *ASK[2:], "--to", name)
    assert done.code == 2
    assert not [path for path in directory.iterdir() if "scores" in path.name]
    Path(name).write_text("old", encoding="utf-8")
    assert command("attribute", "-m", "models.py:raises", *ASK[2:], "--to", name).code == 2
    assert Path(name).read_text(encoding="utf-8") == "old"
