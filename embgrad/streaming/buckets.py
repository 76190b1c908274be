"""Batches of examples of similar length, and their results restored to the order of the source."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.collate import Padding, pad
from embgrad.results.attribution import Attribution
from embgrad.results.certificate import worst
from embgrad.results.gradients import EmbeddingGradients
from embgrad.streaming.source import Portion

__all__ = ["Group", "Piece", "group_portions", "restore"]

Results = Mapping[str, EmbeddingGradients] | Mapping[str, Attribution]

#: The per-position arrays of a result, apart from those of the batch. Positions that were not run are filled with zeros.
_PADDED: Final = ("values", "scores", "activations", "before", "ids")


#: The arrays of a result with one entry for each example.
_OF_EXAMPLES: Final = ("objective", "baseline_objective", "delta", "error")


@dataclass(frozen=True)
class Piece:
    """A batch of examples that are run together.

    Attributes:
        batch: the examples.
        members: for each example of the batch, the index of its portion in the group and its row in that portion.
    """

    batch: TokenBatch
    members: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Group:
    """Consecutive portions of the source, and the batches in which their examples are run.

    Attributes:
        portions: the portions, in the source's order.
        pieces: the batches, in the order in which they are run; empty where the portions are skipped.
    """

    portions: tuple[Portion, ...]
    pieces: tuple[Piece, ...]


def group_portions(
    portions: Generator[Portion, None, None], size: int, window: int | None, padding: Padding, finished: int = 0
) -> Generator[Group, None, None]:
    """Yield the portions in groups, each with the batches in which its examples are run.

    Args:
        portions: the portions in the source's order; the generator is closed together with the groups.
        size: the largest number of examples in a batch.
        window: the number of consecutive examples that are sorted by length; None to run each portion as it is.
        padding: how shorter examples of a batch are padded.
        finished: the number of portions whose results exist already; batches that serve only these are skipped.
    """
    with contextlib.closing(portions):
        if window is None:
            yield from (_group_unsorted(portion, finished) for portion in portions)
        else:
            yield from _group_sorted(portions, size, window, padding, finished)


def _group_unsorted(portion: Portion, finished: int) -> Group:
    if portion.batch is None or portion.number < finished:
        return Group((portion,), ())
    return Group((portion,), (Piece(portion.batch, tuple((0, row) for row in range(portion.count))),))


def _group_sorted(
    portions: Iterable[Portion], size: int, window: int, padding: Padding, finished: int
) -> Generator[Group, None, None]:
    pending: list[Portion] = []
    for portion in portions:
        pending.append(portion)
        if len(pending) == per_window(window, size):
            yield _sort_group(pending, size, padding, finished)
            pending = []
    if pending:
        yield _sort_group(pending, size, padding, finished)


def per_window(window: int, size: int) -> int:
    """Return the number of portions in a window."""
    return -(-window // size)


def _sort_group(portions: Sequence[Portion], size: int, padding: Padding, finished: int) -> Group:
    if any(portion.batch is None for portion in portions):
        return Group(tuple(portions), ())
    members = [(number, row) for number, portion in enumerate(portions) for row in range(portion.count)]
    by_properties: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
    for number, row in members:
        by_properties.setdefault(_batch_properties(portions[number], row), []).append((number, row))
    pieces = []
    for (*_, empty), similar in by_properties.items():
        similar.sort(key=lambda member: len(portions[member[0]].texts[member[1]].ids))  # stable: ties stay in order
        for start in range(0, len(similar), size):
            chosen = similar[start : start + size]
            if any(portions[number].number >= finished for number, _ in chosen):
                texts = [portions[number].texts[row] for number, row in chosen]
                pieces.append(Piece(pad(texts, padding, empty), tuple(chosen)))
    return Group(tuple(portions), tuple(pieces))


def _batch_properties(portion: Portion, row: int) -> tuple[Any, ...]:
    """Return the properties that all examples of one batch must share; examples that differ in them are not run together.

    The last entry is the padded length of a text without tokens: such a text consists of padding alone, so that it keeps the
    length that it has in its own batch.
    """
    text = portion.texts[row]
    assert portion.batch is not None, "what is run was encoded"
    empty = 0 if len(text.ids) else portion.batch.shape[1]
    return text.types is None, text.tokens is None, text.words is None, text.convention, empty


def restore(
    group: Group,
    results: Sequence[Results],
    number: int,
    by_position: Mapping[str, bool],
    objective: Mapping[str, Any],
    window: int,
    padding: Padding,
) -> dict[str, Any]:
    """Return the results of one portion of a group, assembled from the results of the group's batches.

    Args:
        group: the group whose batches were run.
        results: the results of each batch.
        number: the index of the portion in the group.
        by_position: for each point, whether the second axis of its values is the position.
        objective: the description of the portion's objective, for the provenance.
        window: the size of the window, for the provenance.
        padding: how shorter examples are padded.
    """
    origin_of_row: dict[int, tuple[int, int]] = {}
    for index, batch in enumerate(group.pieces):
        origin_of_row.update(
            {row: (index, position) for position, (owner, row) in enumerate(batch.members) if owner == number}
        )
    portion = group.portions[number]
    origins = [origin_of_row[row] for row in range(portion.count)]
    return {
        name: _restore(
            name,
            portion,
            [(results[index][name], position) for index, position in origins],
            by_position[name],
            objective,
            window,
            padding,
        )
        for name in results[0]
    }


def _restore(
    name: str,
    portion: Portion,
    rows: Sequence[tuple[Any, int]],
    by_position: bool,
    objective: Mapping[str, Any],
    window: int,
    padding: Padding,
) -> EmbeddingGradients | Attribution:
    batch, first = portion.batch, rows[0][0]
    assert batch is not None, "what was run was encoded"
    has_batch_ids = first.mask is not None  # else the ids are the indices of another lookup
    arrays: dict[str, Any] = {}
    for key in _PADDED:
        if getattr(first, key, None) is None:
            continue
        rows_of_key = [getattr(result, key)[row] for result, row in rows]
        if by_position or (key == "ids" and has_batch_ids):
            arrays[key] = _stack(rows_of_key, batch.shape[1], padding.side)
        else:
            arrays[key] = np.stack(rows_of_key)
    if has_batch_ids and np.array_equal(np.where(batch.real, arrays["ids"], batch.ids), batch.ids):
        arrays["ids"] = batch.ids.copy()  # with the ids that the batch has at its padding
    arrays |= {
        key: np.array([getattr(result, key)[row] for result, row in rows])
        for key in _OF_EXAMPLES
        if getattr(first, key, None) is not None
    }
    shared: dict[str, Any] = {
        "mask": None if not has_batch_ids or batch.mask is None else batch.mask.copy(),
        "types": None if not has_batch_ids or batch.types is None else batch.types.copy(),
        "tokens": batch.tokens if first.tokens is not None else None,
        "words_of": None if first.words_of is None or batch.words is None else batch.words.copy(),
        "provenance": _provenance(first, batch, objective, window),
    }
    distinct = list({id(result): result for result, _ in rows}.values())
    if isinstance(first, Attribution):
        sizes = [result.provenance["batch_size"] for result in distinct]
        shared["provenance"] |= {"method": _method(rows), "batch_size": max(sizes)}
        shared |= {
            "texts": batch.texts,
            "offsets": None if batch.offsets is None else batch.offsets.copy(),
            "parts": None if batch.parts is None else batch.parts.copy(),
        }
        attribution: Attribution = replace(first, **arrays, **shared)
        return attribution
    gradients: EmbeddingGradients = replace(
        first,
        **arrays,
        **shared,
        pad_leak=max(result.pad_leak for result in distinct),
        certificate=None if first.certificate is None else worst([result.certificate for result in distinct]),
    )
    return gradients


def _method(rows: Sequence[tuple[Attribution, int]]) -> dict[str, Any]:
    """Return the description of the method of a portion's examples, with the entries that each batch has for itself."""
    described = [result.provenance["method"] for result, _ in rows]
    together = dict(described[0])
    for name in ("exact", "steps_taken", "baseline_taken", "reason"):  # one entry for each example
        if name in together:
            together[name] = [own[name][row] for own, (_, row) in zip(described, rows, strict=True)]
    return together


def _stack(arrays: Sequence[np.ndarray], length: int, side: str) -> np.ndarray:
    """Return the arrays stacked and brought to the length of the batch: padding is cut off, or filled with zeros."""
    stacked = np.zeros((len(arrays), length, *arrays[0].shape[1:]), arrays[0].dtype)
    for row, array in enumerate(arrays):
        common = min(length, len(array))
        if side == "left":
            stacked[row, length - common :] = array[len(array) - common :]
        else:
            stacked[row, :common] = array[:common]
    return stacked


def _provenance(
    first: EmbeddingGradients | Attribution, batch: TokenBatch, objective: Mapping[str, Any], window: int
) -> dict[str, Any]:
    shape = first.provenance["output_shape"]
    per_position = shape is not None and len(shape) == 3 and shape[1] == first.ids.shape[1]
    if shape is not None:
        shape = [len(batch), *([batch.shape[1], shape[2]] if per_position else shape[1:])]
    return {
        **first.provenance,
        "objective": dict(objective),
        "output_shape": shape,
        "truncated": batch.truncated.tolist(),
        "window": window,
    }
