"""Rows are a dataset of Ray, results go to a new folder, and errors of the user's own stay as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import embgrad
import embgrad.ray
from embgrad.errors import BatchError, FileFormatError
from tests.unit.ray import models

pytestmark = pytest.mark.usefixtures("cluster")


def test_errors_of_a_dataset_are_unchanged() -> None:
    import ray.data

    def broken(row: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("of the user's own")

    rows = ray.data.from_items([{"text": "w1"}]).map(broken)
    with pytest.raises(ray.exceptions.RayTaskError, match="of the user's own"):
        embgrad.ray.table(rows, models.reading, embgrad.Sum())


def test_a_table_of_no_rows_is_refused() -> None:
    import ray.data

    rows = ray.data.from_items([{"text": "w1"}]).filter(lambda row: False)
    with pytest.raises(BatchError, match=r"^the dataset holds no row: expected one at least"):
        embgrad.ray.table(rows, models.reading, embgrad.Sum(), text="text")


def test_rows_are_a_dataset_of_ray(tmp_path: Path) -> None:
    def write(*given: Any) -> None:
        embgrad.ray.write(*given, tmp_path / "out")

    for given in (3, [], [{"text": "a"}], "a.parquet"):
        for call in (embgrad.ray.gradients, embgrad.ray.table, write):
            with pytest.raises(
                BatchError, match=r"expected a ray.data.Dataset\. Make one of files by ray.data.read_parquet"
            ):
                call(given, models.reference, embgrad.Sum())
    assert not (tmp_path / "out").exists()


def test_the_folder_is_checked(tmp_path: Path) -> None:
    import ray.data

    rows = ray.data.from_items([{"text": "w1"}])
    (tmp_path / "a.txt").touch()
    for folder, message in (
        (tmp_path / "a?b", r"a\?b holds a '\?', after which Ray finds no files: rename it"),
        (
            "foo://a/b",
            r"^foo://a/b cannot be written to \(.*foo.*\): expected a folder, or an address that pyarrow knows",
        ),
        (None, r"^the folder is None: expected the name of a new one"),
        (tmp_path / "a.txt" / "b", r"a\.txt/b cannot be written to \(.*Not a directory.*\): expected a folder"),
        (tmp_path, r"holds 1 files"),
        (tmp_path / "a.txt", r"a\.txt cannot be written to \(.*: expected a folder"),
    ):
        with pytest.raises(FileFormatError, match=message):
            embgrad.ray.write(rows, models.reference, embgrad.Sum(), folder)
