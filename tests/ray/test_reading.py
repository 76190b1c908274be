"""What names no dataset is refused before Ray begins, and waits for nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import embgrad
from embgrad.ray.reading import dataset_of
from tests.core.test_hostile_files import at_once, unix


@unix
@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.txt"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(
        embgrad.FileFormatError, match="is no regular file: expected one of Parquet, JSON lines or texts"
    ):
        at_once(lambda: dataset_of(tmp_path / name))
    (tmp_path / "link.jsonl").symlink_to("nowhere")
    with pytest.raises(embgrad.FileFormatError, match="does not exist: expected a file of Parquet"):
        dataset_of(tmp_path / "link.jsonl")
