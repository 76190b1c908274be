"""Folders of results: read lazily and in order, every shard checked against the manifest before it is believed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from embgrad.common.files import checked_path
from embgrad.errors import EmbgradError, FileFormatError, brief
from embgrad.results.gradients import EmbeddingGradients
from embgrad.results.io import load
from embgrad.results.row_sparse import RowSparse
from embgrad.streaming.manifest import Manifest, Shard, file_digest, read_manifest
from embgrad.streaming.saliencies import Saliencies, load_saliencies
from embgrad.streaming.totals import Total, load_tables

__all__ = ["Kept", "StreamFolder", "open_stream", "read_shard", "table_of", "tables_of"]

#: What is kept of one batch: by the points' names.
Kept = Mapping[str, EmbeddingGradients] | Mapping[str, Saliencies]


def open_stream(folder: str | os.PathLike[str]) -> StreamFolder:
    """The results that `embgrad.stream(..., to=folder)` has written, also while it still writes, or where it was interrupted.

    While it writes, what is finished later is seen when the folder is opened again; so is a last shard that grew meanwhile.

    Args:
        folder: where to.

    Raises:
        FileNotFoundError: there is no such folder, or no manifest in it.
        FileFormatError: the manifest is not as embgrad writes it, or of a later version.
        EmbgradError: `folder` is no path.
    """
    path = checked_path(folder, "folder")
    return StreamFolder(path, read_manifest(path))


class StreamFolder:
    """The results in a folder, in the source's order, read shard by shard.

    Iterating gives what `embgrad.stream` gave, bit for bit; a shard that is missing or has been changed raises FileFormatError.

    Attributes:
        folder: where they are.
        keep: what is kept of each result: "all", "saliency" or "table".
        complete: whether the source was read to its end.
        examples: how many examples the finished results are of.
        run: what tells the run from others: digests of the model's weights and of the options.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.keep = manifest.keep
        self.complete = manifest.complete
        self.examples = manifest.examples
        self.run = manifest.run
        self._manifest = manifest
        self._last: tuple[Shard, list[Kept]] | None = None

    def __len__(self) -> int:
        """The number of finished results, one for each batch."""
        return self._manifest.results

    def __repr__(self) -> str:
        state = "complete" if self.complete else "not complete"
        return f"StreamFolder({str(self.folder)!r}, {len(self)} results of {self.examples} examples, keep={self.keep!r}, {state})"

    def __iter__(self) -> Iterator[Any]:
        self._expect_results()
        for shard in self._manifest.shards:
            for kept in read_shard(self.folder, self._manifest, shard):
                yield self._seen(kept)

    def __getitem__(self, number: int | slice) -> Any:
        """One result, or a list of those of a slice; the last shard that was read stays in memory until another one is.

        Raises:
            IndexError: there are not so many.
            EmbgradError: it is no number; or the folder keeps no results.
        """
        self._expect_results()
        if isinstance(number, slice):
            return [self[place] for place in _places(number, len(self))]
        place = _places(number, len(self))
        shard = next(one for one in self._manifest.shards if one.first <= place < one.first + one.results)
        last = self._last  # another thread may put another one in its place
        if last is None or last[0] != shard:
            last = self._last = shard, read_shard(self.folder, self._manifest, shard)
        return self._seen(deepcopy(last[1][place - shard.first]))  # each time as in the file, whatever is done to it

    def table(self) -> Any:
        """The sum of all examples' table gradients, a RowSparse; with several points a dict of them.

        Added up in float64, shard by shard.

        Raises:
            EmbgradError: only saliencies were kept, or nothing is finished.
            PointError: a point is no lookup.
        """
        if self.keep == "saliency":
            raise EmbgradError(
                "the folder keeps saliencies alone: expected keep='table' or keep='all' for table gradients"
            )
        if self.keep == "table":
            totals = tables_of(self.folder, self._manifest)
        else:
            totals = {name: Total() for name in self._manifest.names}
            for shard in self._manifest.shards:
                for kept in read_shard(self.folder, self._manifest, shard):
                    for name, result in kept.items():
                        totals[name].add(result.table())
        return table_of(totals, self._manifest.single)

    def _seen(self, kept: Kept) -> Any:
        return kept[self._manifest.names[0]] if self._manifest.single else dict(kept)

    def _expect_results(self) -> None:
        if self.keep == "table":
            raise EmbgradError("the folder keeps the sum of the tables alone, with keep='table': expected .table()")


def _places(number: Any, count: int) -> Any:
    """The place of a result, counted from the beginning; of a slice a range of them.

    Raises:
        IndexError: there are not so many.
        EmbgradError: it is neither a number nor a slice.
    """
    try:
        return range(count)[number]
    except (TypeError, ValueError) as error:  # a slice with a step of zero has no places either
        raise EmbgradError(
            f"the number of a result is {brief(number)}: expected a whole number, from 0 on or counted back from -1, or a slice"
        ) from error


def table_of(totals: Mapping[str, Total], single: bool) -> Any:
    """The sums as the user sees them.

    Raises:
        EmbgradError: nothing was added.
    """
    tables: dict[str, RowSparse] = {}
    for name, total in totals.items():
        table = total.table()
        if table is None:
            raise EmbgradError("no batch is finished: expected one at least, to sum up")
        tables[name] = table
    return next(iter(tables.values())) if single else tables


def tables_of(folder: Path, manifest: Manifest) -> dict[str, Total]:
    """The sums so far, of a folder that keeps them; empty ones where nothing is finished.

    Raises:
        FileFormatError: the file is not what the manifest says.
    """
    if not manifest.shards:
        return {name: Total() for name in manifest.names}
    path = _expected(folder, manifest.shards[-1])
    found = load_tables(path)
    if tuple(found) != manifest.names:
        raise FileFormatError(
            f"{path} holds the sums {list(found)}: expected {list(manifest.names)}, as the manifest says"
        )
    return {name: Total(table, dtype) for name, (table, dtype) in found.items()}


def read_shard(folder: Path, manifest: Manifest, shard: Shard) -> list[Any]:
    """The results of a shard, each by the points' names.

    Raises:
        FileFormatError: the shard is missing, not the one that the manifest tells of, or broken.
    """
    path = _expected(folder, shard)
    found: Any = load(path) if manifest.keep == "all" else load_saliencies(path)
    expected = [f"{number} {name}" for number in range(shard.results) for name in manifest.names]
    if not isinstance(found, dict) or list(found) != expected:
        raise FileFormatError(
            f"{path} holds other results than the manifest says: expected {len(expected)}; fetch it again"
        )
    many = len(manifest.names)
    values = list(found.values())
    return [dict(zip(manifest.names, values[at : at + many], strict=True)) for at in range(0, len(values), many)]


def _expected(folder: Path, shard: Shard) -> Path:
    """The path of the file that the manifest tells of, after a look at all of it."""
    path = folder / shard.file
    if not path.is_file():
        raise FileFormatError(f"{path} is missing, which the manifest names: fetch the folder again, or write it anew")
    try:
        digest = file_digest(path)
    except (OSError, ValueError) as error:  # it was there a moment ago
        raise FileFormatError(f"{path} cannot be read: {error}; fetch it again, or write the folder anew") from error
    if digest != shard.sha256:
        raise FileFormatError(
            f"{path} is not the file that was written: its SHA-256 is not the manifest's; fetch it again, or write the folder "
            "anew"
        )
    return path
