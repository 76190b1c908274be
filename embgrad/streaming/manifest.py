"""The manifest of a folder of shards: the identity of the run, and the shards that are finished."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from embgrad.common.files import open_regular, read_json, write_whole
from embgrad.common.schema import FLAG, OBJECT, TEXT, Rule, SchemaError, expect_object, list_of, whole
from embgrad.errors import FileFormatError, brief, quote

__all__ = ["FORMAT", "KEEP", "Manifest", "Shard", "file_digest", "read_manifest", "write_manifest"]

#: The version of the folders' format; a reader refuses a later one.
FORMAT: Final = 1

#: The parts of each result that a folder may store.
KEEP: Final = ("all", "saliency", "table")

#: The most bytes of a manifest: a quarter of a million shards.
MOST_MANIFEST: Final = 2**26

NAME: Final = "manifest.json"

#: The fields of a shard and of a manifest.
_DIGEST: Final = Rule(lambda value: isinstance(value, str) and bool(re.fullmatch("[0-9a-f]{64}", value)), "a SHA-256")
_SHARD: Final = {
    **dict.fromkeys(("first", "examples"), whole(0, 2**53)),
    "results": whole(1, 2**53),
    "full": FLAG,
    **dict.fromkeys(("source", "sha256"), _DIGEST),
}
_MANIFEST: Final = {
    "keep": Rule(lambda value: value in KEEP, f"one of {quote(KEEP)}"),
    "names": Rule(lambda value: list_of(TEXT).accepts(value) and value != [], "the names of the points"),
    "single": FLAG,
    "run": OBJECT,
    "shards": list_of(OBJECT),
    "complete": FLAG,
}


@dataclass(frozen=True)
class Shard:
    """A file of results.

    Attributes:
        first: the number of the file's first result.
        results: the number of results in the file; in a file of sums, the number of summed results.
        examples: the number of examples in these results.
        full: whether the file has reached its size; if not, a resumed run replaces it by one with more results.
        source: the digest of the source from its beginning up to the shard's end.
        sha256: the SHA-256 of the file.
    """

    first: int
    results: int
    examples: int
    full: bool
    source: str
    sha256: str

    @property
    def file(self) -> str:
        """The file's name, which follows from the shard's contents, so that no manifest can name any other file."""
        return f"shard-{self.first:08}-{self.results:06}.safetensors"


@dataclass(frozen=True)
class Manifest:
    """The contents of a folder.

    Attributes:
        keep: the stored part of each result, one of `KEEP`.
        names: the names of the points, as given in `at`.
        single: whether users see the bare result of one point, and not a dict by point.
        run: what identifies the run, by option.
        complete: whether the source was read to its end.
    """

    keep: str
    names: tuple[str, ...]
    single: bool
    run: Mapping[str, Any]
    shards: tuple[Shard, ...] = ()
    complete: bool = False

    @property
    def of_attributions(self) -> bool:
        """True where the results are attributions, by the method in `run`."""
        return "method" in self.run

    @property
    def results(self) -> int:
        """The number of finished results."""
        return self.shards[-1].first + self.shards[-1].results if self.shards else 0

    @property
    def examples(self) -> int:
        """The number of examples in the finished results."""
        return sum(shard.examples for shard in self.shards)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest atomically: a reader sees either the former manifest or this one."""
    text = json.dumps({"embgrad-stream": FORMAT, **asdict(manifest)}, indent=1)
    write_whole(folder / NAME, text.encode(), durable=True)


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a folder.

    Raises:
        FileNotFoundError: the folder does not exist, or holds no manifest.
        PermissionError: the manifest may not be read.
        FileFormatError: the manifest was not written by embgrad, or by a later version.
    """
    path = folder / NAME
    try:
        entries = read_json(path, MOST_MANIFEST)
        version = entries.pop("embgrad-stream")
        if type(version) is not int or version < 1:
            raise ValueError(f"its format is {brief(version)}")
    except (FileNotFoundError, NotADirectoryError):
        problem = "holds no manifest.json" if folder.is_dir() else "is not a folder"
        raise FileNotFoundError(f"{folder} {problem}: expected what embgrad.stream(..., to=folder) writes") from None
    except PermissionError:  # the manifest may be intact, and its run must not be written again
        raise
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise FileFormatError(f"{path} cannot be read as a manifest: {error!r}; write the folder again") from error
    if version > FORMAT:
        raise FileFormatError(
            f"{path} has format {version}, and this embgrad reads up to {FORMAT}: install a newer embgrad"
        )
    try:
        return _check(entries)
    except SchemaError as error:
        raise FileFormatError(f"{path} {error}; write the folder again") from error


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    sha256 = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(2**20):
            sha256.update(block)
    return sha256.hexdigest()


def _check(entries: Mapping[str, Any]) -> Manifest:
    expect_object("manifest", entries, _MANIFEST)
    for entry in entries["shards"]:
        expect_object("shards", entry, _SHARD)
    names = entries["names"]
    if (entries["single"] and len(names) != 1) or len(set(names)) != len(names):
        raise SchemaError(f"says names {brief(names)}: expected each once, and only one if single is true")
    shards = tuple(Shard(**entry) for entry in entries["shards"])
    _expect_consecutive(shards, entries["keep"])
    return Manifest(**{**entries, "names": tuple(names), "shards": shards})


def _expect_consecutive(shards: Sequence[Shard], keep: str) -> None:
    """Raise SchemaError for shards that do not follow one another."""
    if keep == "table" and len(shards) > 1:
        raise SchemaError(f"holds {len(shards)} shards of sums: expected one")
    reached = 0
    for shard in shards:
        if shard.first != reached or (not shard.full and shard is not shards[-1]):
            raise SchemaError(f"holds a shard from result {shard.first} on: expected one that follows those before it")
        reached += shard.results
