"""Writes a stream's results to a folder, so that an interrupted run continues where it stopped."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final

from embgrad.errors import EmbgradError, FileFormatError, brief, listed
from embgrad.results.gradients import EmbeddingGradients
from embgrad.results.io import save
from embgrad.streaming.folder import read_shard, tables_of
from embgrad.streaming.manifest import NAME, Manifest, Shard, file_digest, read_manifest, write_manifest
from embgrad.streaming.saliencies import Saliencies, save_saliencies
from embgrad.streaming.source import Portion
from embgrad.streaming.totals import Total, save_tables

__all__ = ["Writer", "kept_of"]

#: A shard is written when it holds this many results, bytes of arrays, or bytes of token texts, which are in its header.
MOST_RESULTS: Final = 64
MOST_BYTES: Final = 2**26
MOST_TEXT: Final = 2**23

LOCK: Final = ".lock"

#: The names of shards, and the names of shards that begin with the first result.
SHARD: Final = re.compile(r"shard-[0-9]{8,}-[0-9]{6,}\.safetensors")
FIRST: Final = re.compile(r"shard-0{8}-[0-9]{6,}\.safetensors")


def kept_of(keep: str, result: EmbeddingGradients) -> Any:
    """Return the part of a result that is stored."""
    return Saliencies.of(result) if keep == "saliency" else result


@dataclass(frozen=True)
class _Held:
    """The results that are not yet in a full shard.

    Attributes:
        kept: the results; empty where they are only summed up.
        results: the number of results.
        examples: the number of examples in them.
        bytes: the bytes of their arrays.
        text: the bytes of their token texts.
        digest: the digest of the source up to their end.
    """

    kept: tuple[Mapping[str, Any], ...] = ()
    results: int = 0
    examples: int = 0
    bytes: int = 0
    text: int = 0
    digest: str = ""

    @property
    def full(self) -> bool:
        """True when the results fill a shard."""
        return self.results >= MOST_RESULTS or self.bytes >= MOST_BYTES or self.text >= MOST_TEXT

    def with_kept(self, kept: Mapping[str, Any]) -> _Held:
        """Return a copy with one more result stored, but not yet counted."""
        return replace(
            self,
            kept=(*self.kept, kept),
            bytes=self.bytes + sum(_size(one) for one in kept.values()),
            text=self.text + sum(_length(one) for one in kept.values()),
        )

    def counting(self, examples: int, digest: str) -> _Held:
        """Return a copy with one more result counted."""
        return replace(self, results=self.results + 1, examples=self.examples + examples, digest=digest)


class Writer:
    """The writer of a run's folder, which is locked against other writers until `close`.

    The files depend on the run alone, and not on where it was interrupted: they are the same to the last byte. The manifest
    names a file only once the file is on the disk, and files that it does not name are not read. An interruption may occur
    between any two steps and be followed by `flush`; therefore the manifest and the pending results are replaced together.

    Args:
        folder: the folder, which is created where it does not exist; else it must be empty, or of the same run.
        manifest: the manifest of the run, without finished results.

    Raises:
        EmbgradError: another writer holds the folder.
        FileFormatError: the folder holds other files, another run, or a broken manifest; or the path is a file.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self._whole = True
        self._expect: Callable[[], None] = lambda: None
        _make(folder)
        self._lock, self._owner = _locked(folder), os.getpid()
        try:
            self._reached = self._begun(manifest), _Held()
            self._totals = tables_of(folder, self.manifest) if manifest.keep == "table" else {}
        except BaseException:
            self.close()
            raise

    @property
    def manifest(self) -> Manifest:
        """The manifest of the finished results."""
        return self._reached[0]

    def _begun(self, manifest: Manifest) -> Manifest:
        _remove_parts(self.folder)
        if (self.folder / NAME).exists():
            found = read_manifest(self.folder)
            _expect_same(self.folder, found, manifest)
            self._remove_unnamed(found)
            return found
        # An interruption may have left a first shard without a manifest. With later shards, the manifest was removed by somebody.
        other = [path.name for path in self.folder.iterdir() if path.name != LOCK and not _is_shard(path, FIRST)]
        if other:
            raise FileFormatError(
                f"{self.folder} holds {listed(sorted(other), 3)} and no manifest.json: expected an empty folder, or one that "
                "embgrad.stream has written; name another"
            )
        self._remove_unnamed(manifest)
        return manifest

    def _remove_unnamed(self, manifest: Manifest) -> None:
        """Remove shards that were written just before an interruption and are not in the manifest."""
        named = {shard.file for shard in manifest.shards}
        for path in self.folder.iterdir():
            if _is_shard(path) and path.name not in named:
                path.unlink()

    def take_back(self) -> None:
        """Load the results of a last shard that is not full, to replace it by a larger one. Nothing on the disk changes."""
        manifest = self.manifest
        if manifest.keep != "table" and not manifest.complete and manifest.shards and not manifest.shards[-1].full:
            last = manifest.shards[-1]
            held = _Held(results=last.results, examples=last.examples, digest=last.source)
            for kept in read_shard(self.folder, manifest, last):
                held = held.with_kept(kept)
            self._reached = manifest, held

    def add(self, portion: Portion, results: Mapping[str, EmbeddingGradients], kept: Mapping[str, Any]) -> None:
        """Add a portion's results; write the shard if it is full."""
        manifest, held = self._reached
        if manifest.keep == "table":
            tables = {name: result.table() for name, result in results.items()}
            for name, table in tables.items():
                self._totals[name].expect(table)
            self._whole = False
            for name, table in tables.items():
                self._totals[name].add(table)
        else:
            held = held.with_kept(kept)
        self._reached = manifest, held.counting(portion.count, portion.digest)
        self._whole = True
        if self._reached[1].full:
            self._write()

    def flush(self, *, complete: bool = False) -> None:
        """Write the pending results, as after an interruption or, with `complete`, at the end of the run."""
        if not self._whole:  # a result is only partly in the sums, which cannot be undone, or the weights have changed
            return
        manifest, held = self._reached
        last = manifest.shards[-1] if manifest.shards else None
        unchanged = manifest.keep != "table" and last is not None and not last.full and last.results == held.results
        if held.results and not (unchanged and not complete):
            self._write(complete=complete)
        elif complete and not manifest.complete:
            self._put(replace(manifest, complete=True), held)

    def totals(self) -> Mapping[str, Total]:
        """Return the sums so far, by point, with keep="table"."""
        return self._totals

    def expect(self, expect: Callable[[], None]) -> None:
        """Call a function before each later write; if it raises, pending results are dropped and nothing more is written."""
        self._expect = expect

    def put_run(self, run: Mapping[str, Any]) -> None:
        """Replace the identity of the run, parts of which are known only after its first batch."""
        manifest, held = self._reached
        if not manifest.shards:
            self._reached = replace(manifest, run=run), held

    def close(self) -> None:
        """Release the folder to other writers."""
        _unlock(self._lock, self._owner)

    def _write(self, *, complete: bool = False) -> None:
        try:
            self._expect()
        except BaseException:
            self._whole = False
            raise
        manifest, held = self._reached
        before = manifest.shards
        if manifest.keep == "table":
            shard = Shard(0, manifest.results + held.results, manifest.examples + held.examples, True, held.digest, "")
            shards: tuple[Shard, ...] = ()
        else:
            shards = before if not before or before[-1].full else before[:-1]
            first = shards[-1].first + shards[-1].results if shards else 0
            shard = Shard(first, held.results, held.examples, held.full, held.digest, "")
        path = self.folder / shard.file
        self._save(path, held)
        # The shard counts once the manifest names it; until then readers use its predecessor.
        shard = replace(shard, sha256=file_digest(path))
        left = _Held() if held.full or manifest.keep == "table" else held
        self._put(replace(manifest, shards=(*shards, shard), complete=complete), left)
        for old in before:
            if old.file not in {one.file for one in self.manifest.shards}:
                (self.folder / old.file).unlink(missing_ok=True)

    def _save(self, path: Path, held: _Held) -> None:
        if self.manifest.keep == "table":
            save_tables(self._totals, path, durable=True)
            return
        named = {f"{number} {name}": one for number, kept in enumerate(held.kept) for name, one in kept.items()}
        if self.manifest.keep == "all":
            save(named, path, durable=True)
        else:
            save_saliencies(named, path, durable=True)

    def _put(self, manifest: Manifest, held: _Held) -> None:
        write_manifest(self.folder, manifest)
        self._reached = manifest, held


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        file = next(one for one in (folder, *folder.parents) if one.exists() or one.is_symlink())
        raise FileFormatError(
            f"{folder} cannot be made, as {file} is a file: expected an empty folder, or one that embgrad.stream has written; "
            "name another"
        ) from error


def _expect_same(folder: Path, found: Manifest, wanted: Manifest) -> None:
    """Check that a folder belongs to the same run."""
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
    """Return the bytes of the texts in a file's header: the tokens and the provenance, with the objective's arguments."""
    return len(json.dumps(kept.tokens)) + len(json.dumps(dict(kept.provenance), default=str))


def _is_shard(path: Path, pattern: re.Pattern[str] = SHARD) -> bool:
    """Return whether a file's name is one that embgrad gives to shards; other files are never removed."""
    return pattern.fullmatch(path.name) is not None


def _remove_parts(folder: Path) -> None:
    """Remove partial files of a process that was killed while writing; the lock excludes other writers."""
    for path in folder.glob(".*.part"):
        if path.name.startswith((".shard-", f".{NAME}")):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()


def _unlock(file: BinaryIO, owner: int) -> None:
    """Release the lock that `_locked` took in the process `owner`.

    A process that was forked meanwhile has the file open as well. Closing the file would keep the lock until that process
    ends, so that the lock is released explicitly, and by its owner alone.
    """
    if os.name != "nt" and not file.closed and os.getpid() == owner:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_UN)
    file.close()


def _locked(folder: Path) -> BinaryIO:
    """Return the folder's lock file, locked for this process until the file is closed or the process ends in any way.

    Raises:
        EmbgradError: another writer holds the lock.
        FileFormatError: the path is not a regular file.
    """
    path = folder / LOCK
    if path.is_symlink() or (path.exists() and not path.is_file()):  # it would be created elsewhere, or block
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
