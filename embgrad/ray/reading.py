"""The dataset, from Ray or from files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import ray.data

from embgrad.errors import BatchError, FileFormatError, did_you_mean, listed

__all__ = ["dataset_of"]

#: What reads a file, by the end of its name.
READERS: Final = {
    ".parquet": "read_parquet",
    ".jsonl": "read_json",
    ".ndjson": "read_json",
    ".json": "read_json",
    ".txt": "read_text",
}


def dataset_of(given: Any) -> Any:
    """A Ray dataset, as it was given or of the files that were named.

    Args:
        given: a `ray.data.Dataset`, or one or more paths: Parquet (a folder is one of Parquet), JSON lines, or texts, one a
            line, which are then the column "text". Ray's own addresses, such as s3://bucket/name.parquet, are paths, too.

    Raises:
        BatchError: it is neither.
        FileFormatError: a file is not there, or of none of these kinds.
    """
    if isinstance(given, ray.data.Dataset):
        return given
    paths = [given] if isinstance(given, (str, Path)) else given
    if not isinstance(paths, Sequence) or not paths or not all(isinstance(one, (str, Path)) for one in paths):
        raise BatchError(
            f"the dataset is a {type(given).__name__}: expected a ray.data.Dataset, or the paths of Parquet, JSON lines or text "
            "files; ray.data.from_items makes one of a list of dicts"
        )
    readers = {_reader(str(one)) for one in paths}
    if len(readers) > 1:
        raise FileFormatError(f"the files {listed(map(str, paths))} are of different kinds: expected one kind")
    try:
        return getattr(ray.data, readers.pop())([_address(str(one)) for one in paths])
    except (OSError, ValueError) as error:  # Parquet files are looked into at once
        raise FileFormatError(
            f"{listed(map(str, paths))} cannot be read: {str(error).rstrip('.')}; expected files of Parquet, JSON lines or texts"
        ) from error


def _address(path: str) -> str:
    """The path as it is found from any folder: those who read it need not be in ours."""
    return path if "://" in path else str(Path(path).absolute())


def _reader(path: str) -> str:
    local = Path(path)
    if "://" not in path:
        if not local.exists():
            raise FileFormatError(f"{path} does not exist: expected a file of Parquet, JSON lines or texts")
        if local.is_dir():
            if next(local.rglob("*.parquet"), None) is None:
                raise FileFormatError(
                    f"{path} is a folder without a file of Parquet: expected one of these, or the names of the files themselves"
                )
            return READERS[".parquet"]
        if not local.is_file():
            raise FileFormatError(
                f"{path} is no regular file: expected one of Parquet, JSON lines or texts, or a folder"
            )
    suffixes = [one for one in local.suffixes if one not in (".gz", ".bz2", ".zst", ".snappy")]
    suffix = suffixes[-1].lower() if suffixes else ""
    if suffix not in READERS:
        raise FileFormatError(
            f"{path} ends in {suffix!r}: expected one of {listed(READERS)}; for other files make a dataset with ray.data and "
            f"give that.{did_you_mean(suffix, READERS)}"
        )
    return READERS[suffix]
