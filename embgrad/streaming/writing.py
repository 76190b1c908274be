"""Writes a stream's results to a folder, so that a run that is interrupted goes on where it stopped."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Final

from embgrad.errors import EmbgradError, FileFormatError, brief, listed
from embgrad.result import EmbeddingGradients
from embgrad.storage import save
from embgrad.streaming.folder import read_shard, tables_of
from embgrad.streaming.manifest import NAME, Manifest, Shard, file_digest, read_manifest, write_manifest
from embgrad.streaming.saliencies import Saliencies, save_saliencies
from embgrad.streaming.source import Portion
from embgrad.streaming.totals import Total, save_tables

__all__ = ["Writer", "kept_of"]

#: A shard is written when it holds so many results, or so many bytes, or so many of tokens' texts, which are in its header.
MOST_RESULTS: Final = 64
MOST_BYTES: Final = 2**26
MOST_TEXT: Final = 2**23

LOCK: Final = ".lock"


def kept_of(keep: str, result: EmbeddingGradients) -> Any:
    """What is kept of a result."""
    return Saliencies.of(result) if keep == "saliency" else result


class Writer:
    """The folder of a run, held against other writers until `close`.

    What is written depends on the run alone, and not on where it was interrupted: the files are the same to the last byte. A
    file's name stands in the manifest only when the file is on the disk, and a file that the manifest does not name is not read.

    Args:
        folder: made where it is not there; else empty, or of the same run.
        manifest: of the run, with nothing finished.

    Attributes:
        manifest: what is finished.

    Raises:
        EmbgradError: another writer is at it.
        FileFormatError: the folder holds something else, another run, or a broken manifest.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self._held: list[Mapping[str, Any]] = []
        self._examples = self._bytes = self._text = self._results = 0
        self._digest = ""
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(folder)
        try:
            self.manifest = self._begun(manifest)
            self._totals = tables_of(folder, self.manifest) if manifest.keep == "table" else {}
        except BaseException:
            self.close()
            raise

    def _begun(self, manifest: Manifest) -> Manifest:
        _remove_parts(self.folder)
        if (self.folder / NAME).exists():
            found = read_manifest(self.folder)
            _expect_same(self.folder, found, manifest)
            self._remove_unnamed(found)
            return found
        other = [path.name for path in self.folder.iterdir() if path.name != LOCK and not _is_shard(path)]
        if other:
            raise FileFormatError(
                f"{self.folder} holds {listed(sorted(other), 3)} and no manifest.json: expected an empty folder, or one that "
                "embgrad.stream has written; name another"
            )
        self._remove_unnamed(manifest)
        return manifest

    def _remove_unnamed(self, manifest: Manifest) -> None:
        """Files that were written, and whose manifest was not any more."""
        named = {shard.file for shard in manifest.shards}
        for path in self.folder.iterdir():
            if _is_shard(path) and path.name not in named:
                path.unlink()

    def take_back(self) -> None:
        """Hold the results of a last shard that is not full, to write it anew with more. Nothing on the disk changes."""
        shards = self.manifest.shards
        if self.manifest.keep != "table" and not self.manifest.complete and shards and not shards[-1].full:
            last = shards[-1]
            self._held = list(read_shard(self.folder, self.manifest, last))
            self._examples, self._digest, self._results = last.examples, last.source, last.results
            self._bytes = sum(_size(one) for kept in self._held for one in kept.values())
            self._text = sum(_length(one) for kept in self._held for one in kept.values())

    def add(self, portion: Portion, results: Mapping[str, EmbeddingGradients], kept: Mapping[str, Any]) -> None:
        """Take a portion's results; a shard that is full is written."""
        if self.manifest.keep == "table":
            for name, result in results.items():
                self._totals[name].add(result.table())
        else:
            self._held.append(kept)
            self._bytes += sum(_size(one) for one in kept.values())
            self._text += sum(_length(one) for one in kept.values())
        self._results += 1
        self._examples += portion.count
        self._digest = portion.digest
        if self._results >= MOST_RESULTS or self._bytes >= MOST_BYTES or self._text >= MOST_TEXT:
            self._write(full=True)

    def flush(self, *, complete: bool = False) -> None:
        """Write what is held; it is as if the run were interrupted here, or complete."""
        last = self.manifest.shards[-1] if self.manifest.shards else None
        unchanged = (
            self.manifest.keep != "table" and last is not None and not last.full and last.results == self._results
        )
        if self._results and not (unchanged and not complete):
            self._write(full=False, complete=complete)
        elif complete and not self.manifest.complete:
            self._put(replace(self.manifest, complete=True))

    def totals(self) -> Mapping[str, Total]:
        """With keep="table" the sums so far."""
        return self._totals

    def put_run(self, run: Mapping[str, Any]) -> None:
        """What tells the run, where it was not all known before its first batch."""
        if not self.manifest.shards:
            self.manifest = replace(self.manifest, run=run)

    def close(self) -> None:
        """Let others write."""
        self._lock.close()

    def _write(self, *, full: bool, complete: bool = False) -> None:
        manifest = self.manifest
        before = manifest.shards
        if manifest.keep == "table":
            shard = Shard(
                0, manifest.results + self._results, manifest.examples + self._examples, True, self._digest, ""
            )
            shards: tuple[Shard, ...] = ()
        else:
            shards = before if not before or before[-1].full else before[:-1]
            first = shards[-1].first + shards[-1].results if shards else 0
            shard = Shard(first, len(self._held), self._examples, full, self._digest, "")
        path = self.folder / shard.file
        self._save(path)
        # Once it has its name in the manifest it counts; until then a reader knows the one before.
        shard = replace(shard, sha256=file_digest(path))
        self._put(replace(manifest, shards=(*shards, shard), complete=complete))
        for old in before:
            if old.file not in {one.file for one in self.manifest.shards}:
                (self.folder / old.file).unlink(missing_ok=True)
        if full or manifest.keep == "table":
            self._held, self._bytes, self._text, self._examples, self._results = [], 0, 0, 0, 0

    def _save(self, path: Path) -> None:
        if self.manifest.keep == "table":
            save_tables(self._totals, path, durable=True)
            return
        named = {f"{number} {name}": one for number, kept in enumerate(self._held) for name, one in kept.items()}
        if self.manifest.keep == "all":
            save(named, path, durable=True)
        else:
            save_saliencies(named, path, durable=True)

    def _put(self, manifest: Manifest) -> None:
        write_manifest(self.folder, manifest)
        self.manifest = manifest


def _expect_same(folder: Path, found: Manifest, wanted: Manifest) -> None:
    """Refuse a folder of another run."""
    was: dict[str, Any] = {"keep": found.keep, "at": list(found.names), **found.run}
    now: dict[str, Any] = {"keep": wanted.keep, "at": list(wanted.names), **wanted.run}
    if found.single != wanted.single:
        was["at"], now["at"] = f"single: {found.single}", f"single: {wanted.single}"
    differ = [name for name in dict.fromkeys([*was, *now]) if was.get(name) != now.get(name)]
    if differ:
        told = "; ".join(f"{name} was {brief(was.get(name))} and is {brief(now.get(name))}" for name in differ)
        raise FileFormatError(
            f"{folder} holds the results of another run: {told}; expected the same model, objective and options to go on with "
            "it; name another folder, or remove this one"
        )


def _size(kept: Any) -> int:
    if isinstance(kept, Saliencies):
        return kept.nbytes
    arrays = [kept.values, kept.activations, kept.before]
    tables = sum(table.nbytes for table in kept.tables or ())
    return int(tables + sum(array.nbytes for array in arrays if array is not None))


def _length(kept: Any) -> int:
    """The bytes of the tokens' texts as they stand in a file."""
    return 0 if kept.tokens is None else len(json.dumps(kept.tokens))


def _is_shard(path: Path) -> bool:
    return path.name.startswith("shard-") and path.suffix == ".safetensors"


def _remove_parts(folder: Path) -> None:
    """What was left of files that were being written when the process was killed; nobody else writes here."""
    for path in folder.glob(".*.part"):
        if path.name.startswith((".shard-", f".{NAME}")):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()


def _locked(folder: Path) -> BinaryIO:
    """A file that the system holds for this process alone, until it is closed or the process ends in any way.

    Raises:
        EmbgradError: another writer holds it.
        FileFormatError: something else is in its place.
    """
    path = folder / LOCK
    if path.is_symlink() or (path.exists() and not path.is_file()):  # it would be made elsewhere, or waited for
        raise FileFormatError(f"{path} is no regular file: expected the one that embgrad.stream makes; remove it")
    file = path.open("ab")
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise EmbgradError(
            f"{folder} is being written to by another stream ({error}): expected one writer; wait until it has ended, close it, "
            "or name another folder"
        ) from error
    return file
