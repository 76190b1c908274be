"""Folders of results: read lazily and in order, with every shard checked against the manifest before it is used."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from embgrad.common.files import check_path
from embgrad.errors import EmbgradError, FileFormatError, brief
from embgrad.results.attribution import Attribution
from embgrad.results.gradients import EmbeddingGradients
from embgrad.results.io import load
from embgrad.results.row_sparse import RowSparse
from embgrad.streaming.manifest import Manifest, Shard, file_digest, read_manifest
from embgrad.streaming.tables import TabularResults
from embgrad.streaming.totals import Total, load_tables

__all__ = ["Kept", "StreamFolder", "open_stream", "read_shard", "table_of", "tables_of"]

#: The stored results of one batch, by the names of the points.
Kept = Mapping[str, EmbeddingGradients] | Mapping[str, Attribution]


def open_stream(folder: str | os.PathLike[str]) -> StreamFolder:
    """Return the results that `embgrad.stream(..., to=folder)` has written, even while it is writing or after an interruption.

    Results that are finished after the folder was opened appear when it is opened again, and so does a last shard that grew.

    Args:
        folder: the folder that was given as `to`.

    Raises:
        FileNotFoundError: the folder does not exist, or holds no manifest.
        FileFormatError: the manifest was not written by embgrad, or by a later version.
        EmbgradError: `folder` is not a path.
    """
    path = check_path(folder, "folder")
    return StreamFolder(path, read_manifest(path))


class StreamFolder(TabularResults):
    """The results in a folder, in the source's order, read shard by shard.

    Iterating yields the results of `embgrad.stream`, bit for bit. A shard that is missing or was modified raises
    FileFormatError.

    Attributes:
        folder: the path of the folder.
        keep: the stored part of each result: "all", "saliency" or "table".
        complete: whether the source was read to its end.
        examples: the number of examples in the finished results.
        run: what identifies the run: digests of the model's weights and of the options.
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
            for stored in read_shard(self.folder, self._manifest, shard):
                yield self._for_users(stored)

    def __getitem__(self, number: int | slice) -> Any:
        """Return one result, or a list of results for a slice. The shard that was read last stays in memory.

        Raises:
            IndexError: the folder holds fewer results.
            EmbgradError: `number` is neither a whole number nor a slice, or the folder was written with keep="table".
        """
        self._expect_results()
        if isinstance(number, slice):
            return [self[index] for index in _indices(number, len(self))]
        index = _indices(number, len(self))
        shard = next(entry for entry in self._manifest.shards if entry.first <= index < entry.first + entry.results)
        last = self._last  # another thread may replace it meanwhile
        if last is None or last[0] != shard:
            last = self._last = shard, read_shard(self.folder, self._manifest, shard)
        return self._for_users(deepcopy(last[1][index - shard.first]))  # a copy, which the caller may modify

    def table(self) -> Any:
        """Return the sum of all examples' table gradients, a RowSparse, or a dict of them by point where there are several.

        The sum is computed in float64, shard by shard.

        Raises:
            EmbgradError: the folder holds attributions, or no result is finished.
            PointError: a point is not a lookup.
        """
        if self._manifest.of_attributions:
            raise EmbgradError(
                "the folder holds attributions, which have no table gradients: expected a folder that was written with "
                "keep='table' or 'all', and no method"
            )
        if self.keep == "table":
            totals = tables_of(self.folder, self._manifest)
        else:
            totals = {name: Total() for name in self._manifest.names}
            for shard in self._manifest.shards:
                for stored in read_shard(self.folder, self._manifest, shard):
                    for name, result in stored.items():
                        totals[name].add(result.table())
        return table_of(totals, self._manifest.single)

    def _from_the_first(self) -> Iterator[Any]:
        return iter(self)

    def _for_users(self, stored: Kept) -> Any:
        return stored[self._manifest.names[0]] if self._manifest.single else dict(stored)

    def _expect_results(self) -> None:
        if self.keep == "table":
            raise EmbgradError(
                "the folder was written with keep='table' and holds only the sum of the tables: call .table()"
            )


def _indices(number: Any, count: int) -> Any:
    """Return the index of a result, counted from the beginning, or a range of indices for a slice.

    Raises:
        IndexError: there are fewer results.
        EmbgradError: `number` is neither a whole number nor a slice.
    """
    try:
        return range(count)[number]
    except (TypeError, ValueError) as error:  # ValueError: a slice with a step of zero
        raise EmbgradError(
            f"the number of a result is {brief(number)}: expected a whole number, from 0 on or counted back from -1, or a slice"
        ) from error


def table_of(totals: Mapping[str, Total], single: bool) -> Any:
    """Return the sums in the form that users see: one RowSparse, or a dict by point."""
    tables: dict[str, RowSparse] = {}
    for name, total in totals.items():
        table = total.table()
        if table is None:
            raise EmbgradError("no batch is finished: expected one at least, to sum up")
        tables[name] = table
    return next(iter(tables.values())) if single else tables


def tables_of(folder: Path, manifest: Manifest) -> dict[str, Total]:
    """Return the sums stored in a folder, by point; empty sums where no result is finished."""
    if not manifest.shards:
        return {name: Total() for name in manifest.names}
    path = _check_file(folder, manifest.shards[-1])
    sums = load_tables(path)
    if tuple(sums) != manifest.names:
        raise FileFormatError(
            f"{path} holds the sums {list(sums)}: expected {list(manifest.names)}, as the manifest says"
        )
    return {name: Total(table, dtype) for name, (table, dtype) in sums.items()}


def read_shard(folder: Path, manifest: Manifest, shard: Shard) -> list[Any]:
    """Return the results of a shard, each a dict by the names of the points."""
    path = _check_file(folder, shard)
    contents: Any = load(path)
    expected = [f"{number} {name}" for number in range(shard.results) for name in manifest.names]
    if (
        not isinstance(contents, Mapping)
        or list(contents) != expected
        or any(isinstance(result, Attribution) != manifest.of_attributions for result in contents.values())
    ):
        raise FileFormatError(
            f"{path} holds other results than the manifest says: expected {len(expected)}; fetch it again"
        )
    count = len(manifest.names)
    values = list(contents.values())
    return [
        dict(zip(manifest.names, values[start : start + count], strict=True)) for start in range(0, len(values), count)
    ]


def _check_file(folder: Path, shard: Shard) -> Path:
    """Return the path of a shard's file after checking the file's digest."""
    path = folder / shard.file
    if not path.is_file():
        raise FileFormatError(f"{path} is missing, which the manifest names: fetch the folder again, or write it anew")
    try:
        digest = file_digest(path)
    except (OSError, ValueError) as error:  # it was removed or replaced meanwhile
        raise FileFormatError(f"{path} cannot be read: {error}; fetch it again, or write the folder anew") from error
    if digest != shard.sha256:
        raise FileFormatError(
            f"{path} is not the file that was written: its SHA-256 is not the manifest's; fetch it again, or write the folder "
            "anew"
        )
    return path
