"""Write a stream's results to a folder, so that an interrupted run continues where it stopped."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final

from embgrad.errors import EmbgradError, FileFormatError, brief, quote
from embgrad.results.attribution import Attribution
from embgrad.results.gradients import EmbeddingGradients
from embgrad.results.io import save
from embgrad.streaming.folder import read_shard, tables_of
from embgrad.streaming.manifest import NAME, Manifest, Shard, file_digest, read_manifest, write_manifest
from embgrad.streaming.totals import Total, save_tables

__all__ = ["Writer", "changes_between", "select_stored"]

#: A shard is written when it holds this many results, bytes of arrays, or bytes of token texts, which are in its header.
MOST_RESULTS: Final = 64
MOST_BYTES: Final = 2**26
MOST_TEXT: Final = 2**23

LOCK: Final = ".lock"

#: The names of shards, and the names of shards that begin with the first result.
SHARD: Final = re.compile(r"shard-[0-9]{8,}-[0-9]{6,}\.safetensors")
FIRST: Final = re.compile(r"shard-0{8}-[0-9]{6,}\.safetensors")


def select_stored(keep: str, result: EmbeddingGradients | Attribution) -> Any:
    """Return the part of a result that is stored."""
    return replace(result, values=None) if keep == "saliency" and isinstance(result, Attribution) else result


@dataclass(frozen=True)
class _Pending:
    """The results that are not yet in a full shard.

    Attributes:
        stored: the results; empty where they are only summed up.
        digest: the digest of the source up to their end.
    """

    stored: tuple[Mapping[str, Any], ...] = ()
    results: int = 0
    examples: int = 0
    bytes: int = 0
    text: int = 0
    digest: str = ""

    @property
    def full(self) -> bool:
        """True when the results fill a shard."""
        return self.results >= MOST_RESULTS or self.bytes >= MOST_BYTES or self.text >= MOST_TEXT

    def with_stored(self, stored: Mapping[str, Any]) -> _Pending:
        """Return a copy with one more result stored, but not yet counted."""
        return replace(
            self,
            stored=(*self.stored, stored),
            bytes=self.bytes + sum(_array_bytes(part) for part in stored.values()),
            text=self.text + sum(_text_bytes(part) for part in stored.values()),
        )

    def counting(self, examples: int, digest: str) -> _Pending:
        """Return a copy with one more result counted."""
        return replace(self, results=self.results + 1, examples=self.examples + examples, digest=digest)


class Writer:
    """The writer of a run's folder, which is locked against other writers until `close`.

    The files depend on the run alone, and not on where it was interrupted: they are the same to the last byte. The manifest
    names a file only once the file is on the disk, and files that it does not name are not read. An interruption may occur
    between any two steps and be followed by `flush`; therefore the manifest and the pending results are replaced together.

    Args:
        folder: the folder, which is created where it does not exist; else it must be empty, or of the same run.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self._intact = True
        self._expect: Callable[[], None] = lambda: None
        _create(folder)
        self._lock, self._owner = _lock(folder), os.getpid()
        try:
            self._progress = self._open_manifest(manifest), _Pending()
            self._totals = tables_of(folder, self.manifest) if manifest.keep == "table" else {}
        except BaseException:
            self.close()
            raise

    @property
    def manifest(self) -> Manifest:
        """The manifest of the finished results."""
        return self._progress[0]

    def _open_manifest(self, manifest: Manifest) -> Manifest:
        _remove_partial_files(self.folder)
        if (self.folder / NAME).exists():
            existing = read_manifest(self.folder)
            _expect_same(self.folder, existing, manifest)
            self._remove_unnamed(existing)
            return existing
        # An interruption may have left a first shard without a manifest. With later shards, the manifest was removed by somebody.
        foreign = [path.name for path in self.folder.iterdir() if path.name != LOCK and not _is_shard(path, FIRST)]
        if foreign:
            raise FileFormatError(
                f"{self.folder} holds {quote(sorted(foreign), 3)} and no manifest.json: expected an empty folder, or one that "
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

    def reload_last_shard(self) -> None:
        """Load the results of a last shard that is not full, to replace it by a larger one. Nothing on the disk changes."""
        manifest = self.manifest
        if manifest.keep != "table" and not manifest.complete and manifest.shards and not manifest.shards[-1].full:
            last = manifest.shards[-1]
            pending = _Pending(results=last.results, examples=last.examples, digest=last.source)
            for stored in read_shard(self.folder, manifest, last):
                pending = pending.with_stored(stored)
            self._progress = manifest, pending

    def add(
        self, examples: int, digest: str, results: Mapping[str, EmbeddingGradients], stored: Mapping[str, Any]
    ) -> None:
        """Add the results of some examples, with the digest of the source up to their end; write the shard if it is full."""
        manifest, pending = self._progress
        if manifest.keep == "table":
            tables = {name: result.table() for name, result in results.items()}
            for name, table in tables.items():
                self._totals[name].expect(table)
            self._intact = False
            for name, table in tables.items():
                self._totals[name].add(table)
        else:
            pending = pending.with_stored(stored)
        self._progress = manifest, pending.counting(examples, digest)
        self._intact = True
        if self._progress[1].full:
            self._write()

    def flush(self, *, complete: bool = False) -> None:
        """Write the pending results, as after an interruption or, with `complete`, at the end of the run."""
        if not self._intact:  # a result is only partly in the sums, which cannot be undone, or the weights have changed
            return
        manifest, pending = self._progress
        last = manifest.shards[-1] if manifest.shards else None
        unchanged = manifest.keep != "table" and last is not None and not last.full and last.results == pending.results
        if pending.results and not (unchanged and not complete):
            self._write(complete=complete)
        elif complete and not manifest.complete:
            self._commit(replace(manifest, complete=True), pending)

    def totals(self) -> Mapping[str, Total]:
        """Return the sums so far, by point, with keep="table"."""
        return self._totals

    def expect(self, expect: Callable[[], None]) -> None:
        """Call a function before each later write; if it raises, pending results are dropped and nothing more is written."""
        self._expect = expect

    def replace_run(self, run: Mapping[str, Any]) -> None:
        """Replace the identity of the run, parts of which are known only after its first batch."""
        manifest, pending = self._progress
        if not manifest.shards:
            self._progress = replace(manifest, run=run), pending

    def close(self) -> None:
        """Release the folder to other writers."""
        _unlock(self._lock, self._owner)

    def _write(self, *, complete: bool = False) -> None:
        try:
            self._expect()
        except BaseException:
            self._intact = False
            raise
        manifest, pending = self._progress
        former = manifest.shards
        if manifest.keep == "table":
            shard = Shard(
                0, manifest.results + pending.results, manifest.examples + pending.examples, True, pending.digest, ""
            )
            shards: tuple[Shard, ...] = ()
        else:
            shards = former if not former or former[-1].full else former[:-1]
            first = shards[-1].first + shards[-1].results if shards else 0
            shard = Shard(first, pending.results, pending.examples, pending.full, pending.digest, "")
        path = self.folder / shard.file
        self._save(path, pending)
        # The shard counts once the manifest names it; until then readers use its predecessor.
        shard = replace(shard, sha256=file_digest(path))
        remaining = _Pending() if pending.full or manifest.keep == "table" else pending
        self._commit(replace(manifest, shards=(*shards, shard), complete=complete), remaining)
        for old in former:
            if old.file not in {shard.file for shard in self.manifest.shards}:
                (self.folder / old.file).unlink(missing_ok=True)

    def _save(self, path: Path, pending: _Pending) -> None:
        if self.manifest.keep == "table":
            save_tables(self._totals, path, durable=True)
            return
        named = {
            f"{number} {name}": part for number, stored in enumerate(pending.stored) for name, part in stored.items()
        }
        save(named, path, durable=True)

    def _commit(self, manifest: Manifest, pending: _Pending) -> None:
        write_manifest(self.folder, manifest)
        self._progress = manifest, pending


def _create(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        file = next(part for part in (folder, *folder.parents) if part.exists() or part.is_symlink())
        raise FileFormatError(
            f"{folder} cannot be made, as {file} is a file: expected an empty folder, or one that embgrad.stream has written; "
            "name another"
        ) from error


def _expect_same(folder: Path, existing: Manifest, requested: Manifest) -> None:
    """Check that a folder belongs to the same run."""
    former: dict[str, Any] = {"keep": existing.keep, "at": list(existing.names), **existing.run}
    current: dict[str, Any] = {"keep": requested.keep, "at": list(requested.names), **requested.run}
    if existing.single != requested.single:
        former["at"], current["at"] = f"single: {existing.single}", f"single: {requested.single}"
    changes = list(changes_between(former, current))
    if changes:
        raise FileFormatError(
            f"{folder} holds the results of another run: {'; '.join(changes)}. Pass the same model, objective and options to "
            "continue it, name another folder, or remove this one"
        )


def changes_between(former: Mapping[str, Any], current: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield the entries that differ, those of mappings of one class by their own names."""
    for name in dict.fromkeys([*former, *current]):
        was, now = former.get(name), current.get(name)
        if isinstance(was, Mapping) and isinstance(now, Mapping) and was.get("class") == now.get("class"):
            yield from changes_between(was, now, f"{above}{name}.")
        elif was != now:
            yield f"{above}{name} was {brief(was)} and is {brief(now)}"


def _array_bytes(part: Any) -> int:
    if isinstance(part, Attribution):
        return int(sum(array.nbytes for array in (part.values, part.scores) if array is not None))
    arrays = [part.values, part.activations, part.before]
    tables = sum(table.nbytes for table in part.tables or ())
    return int(tables + sum(array.nbytes for array in arrays if array is not None))


def _text_bytes(part: Any) -> int:
    """Return the bytes of the texts in a file's header: the tokens and the provenance, with the objective's arguments."""
    return len(json.dumps(part.tokens)) + len(json.dumps(dict(part.provenance), default=str))


def _is_shard(path: Path, pattern: re.Pattern[str] = SHARD) -> bool:
    """Return whether a file's name is one that embgrad gives to shards; other files are never removed."""
    return pattern.fullmatch(path.name) is not None


def _remove_partial_files(folder: Path) -> None:
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


def _lock(folder: Path) -> BinaryIO:
    """Return the folder's lock file, locked for this process until the file is closed or the process ends in any way."""
    path = folder / LOCK
    if path.is_symlink() or (path.exists() and not path.is_file()):  # it would be created elsewhere, or block
        raise FileFormatError(f"{path} is not a regular file: expected the one that embgrad.stream makes; remove it")
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
