"""The columns of results' tables: a row for each token, word, pair of these, change, substitution or example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from embgrad.common.token_text import show_token
from embgrad.errors import EmbgradError
from embgrad.results.tabular import UNITS, Columns, join, optional, stack, text_column
from embgrad.results.words import is_special, words_of_examples

__all__ = [
    *(
        "attribution_columns",
        "change_columns",
        "example_columns",
        "influence_columns",
        "term_columns",
        "metric_columns",
        "pair_columns",
        "saliency_columns",
    ),
    *("share_columns", "substitution_columns", "token_attribution_columns"),
]

#: A character after all others.
FAR: Final = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Units:
    """The tokens or words of a batch that have rows, in the order of examples and positions.

    Attributes:
        columns: what is known of each, by the names of columns, without the example.
    """

    examples: np.ndarray
    members: Sequence[Sequence[int]]
    columns: Columns

    def of_example(self, example: int) -> np.ndarray:
        """Return the indices of an example's units."""
        return np.arange(*np.searchsorted(self.examples, [example, example + 1]))

    def merge(self, sums: np.ufunc, values: np.ndarray, chosen: np.ndarray, axis: int = -1) -> np.ndarray:
        """Return the scores of chosen units of one example from those of its positions, along an axis."""
        if not len(chosen):
            return np.zeros_like(np.take(values, [], axis), np.float64)
        groups = [self.members[index] for index in chosen.tolist()]
        starts = np.cumsum([0, *map(len, groups[:-1])])
        merged = sums.reduceat(np.take(np.asarray(values, np.float64), np.concatenate(groups), axis), starts, axis)
        return np.asarray(merged)

    def take(self, chosen: np.ndarray, suffix: str = "") -> dict[str, np.ndarray]:
        """Return the columns of chosen units, with a suffix to their names."""
        return {name + suffix: values[chosen] for name, values in self.columns.items()}


def units_of(result: Any, by: Any, special: bool) -> Units:
    """Return the tokens, words or segments of a result at real positions.

    Args:
        result: has `ids`, `real`, `tokens` and `words_of`, and may have `offsets` and `parts`.
        by: "tokens", "words" or "segments", or parts by name.
    """
    words = None
    found: list[tuple[int, tuple[int, ...], str | None]]
    if result.tokens is not None:
        words = words_of_examples(result.tokens, result.words_of, result.real, np.zeros(result.ids.shape), np.sum)
    if by not in UNITS:
        from embgrad.results.segments import segments_of  # an import of a plain gradient otherwise

        parts = by if isinstance(by, Mapping) else None
        segments = [(row, segments_of(result, row, parts, special)) for row in range(len(result.ids))]
        found = [(row, segment.positions, segment.name) for row, each in segments for segment in each]
    elif by == "words":
        if words is None:
            raise EmbgradError(
                "by is 'words', but the tokens of this result are not known, only their ids: pass by='tokens', or a batch by "
                "embgrad.encode(texts, tokenizer)"
            )
        found = [(example, word.positions, word.text) for example, row in enumerate(words) for word in row]
    elif words is None:
        found = [(example, (position,), None) for example, position in np.argwhere(result.real).tolist()]
    else:
        rows = enumerate(words)
        found = [(row, (position,), word.text) for row, each in rows for word in each for position in word.positions]
    if not special and by in UNITS:
        found = [unit for unit in found if not is_special(result, unit[0], unit[1][0])]
    examples = np.array([example for example, _, _ in found], np.int64)
    members = [positions for _, positions, _ in found]
    return Units(examples, members, _unit_columns(result, by, examples, members, [text for _, _, text in found]))


def _unit_columns(
    result: Any, by: Any, examples: np.ndarray, members: Sequence[Sequence[int]], words: Sequence[str | None]
) -> Columns:
    first = np.array([positions[0] for positions in members], np.int64)
    columns: dict[str, np.ndarray] = {"position": first}
    if by == "tokens":
        places = list(zip(examples.tolist(), first.tolist(), strict=True))
        tokens = [None if result.tokens is None else result.tokens[row][position] for row, position in places]
        columns |= {"id": result.ids[examples, first], "token": text_column(tokens)}
    columns["word" if by in UNITS else "segment"] = text_column(words)
    return columns | _characters(result, examples, members)


def _characters(result: Any, examples: np.ndarray, members: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
    """Return where units stand in their texts: the text of a pair, and the characters from `start` up to `end`."""
    names = ("part", "start", "end")
    offsets, parts = getattr(result, "offsets", None), getattr(result, "parts", None)
    if offsets is None or parts is None or not members:
        return {name: optional(np.full(len(members), -1)) for name in names}
    counts = np.array([len(positions) for positions in members])
    rows, columns, begins = np.repeat(examples, counts), np.concatenate(members), np.cumsum(counts) - counts
    part = parts[rows, columns]
    starts = np.where(part < 0, FAR, offsets[rows, columns, 0])
    ends = np.where(part < 0, -1, offsets[rows, columns, 1])
    last = np.maximum.reduceat(ends, begins)
    start = np.where(last < 0, -1, np.minimum.reduceat(starts, begins))
    return dict(zip(names, map(optional, (np.maximum.reduceat(part, begins), start, last)), strict=True))


def _score(units: Units, scores: np.ndarray, sums: np.ufunc) -> Columns:
    merged = [units.merge(sums, row, units.of_example(example)) for example, row in enumerate(scores)]
    return {"example": units.examples, **units.columns, "score": np.concatenate(merged)}


def saliency_columns(result: Any, scores: np.ndarray, kind: str, by: str, special: bool) -> Columns:
    """Return the columns of gradients: a row for each token or word with its saliency.

    Args:
        result: the gradients, or what is kept of them.
        scores: the saliency of each position, (example, position).
        kind: "norm" or "dot".
    """
    return _score(units_of(result, by, special), scores, np.hypot if kind == "norm" else np.add)


def attribution_columns(result: Any, by: Any, special: bool) -> Columns:
    """Return the columns of an `Attribution`: a row for each token, word or segment with its score."""
    return _score(units_of(result, by, special), result.scores, np.add if result.signed else np.hypot)


def token_attribution_columns(result: Any, by: Any, special: bool) -> Columns:
    """Return the columns of a `TokenAttribution`: a row for each output and each input that can contribute to it."""
    has_decoder = result.decoder_scores is not None
    sides = {"encoder" if has_decoder else "": (result.of_output(0), result.scores)}
    if has_decoder:
        sides["decoder"] = (result.of_output(0, decoder=True), result.decoder_scores)
    # A decoder has no segments, since its text is not known.
    units = {
        side: _tokens_as_segments(of_side, special)
        if side == "decoder" and by not in UNITS
        else units_of(of_side, by, special)
        for side, (of_side, _) in sides.items()
    }
    blocks = []
    for example in range(len(result.ids)):
        outputs = np.flatnonzero(result.spans[example, :, 0] >= 0)
        for side, (_, scores) in sides.items():
            causal = side != "encoder"
            blocks.append(_block(result, units[side], scores[example], example, outputs, causal))
            if has_decoder:
                rows = len(blocks[-1]["score"])
                blocks[-1] = {"side": text_column([side] * rows), **blocks[-1]}
    first = [name for name in ("example", *_outputs_of(result, 0, [])) if name in blocks[0]] + ["side"] * has_decoder
    columns = {name: join([block[name] for block in blocks]) for name in blocks[0]}
    return {name: columns[name] for name in (*first, *(name for name in columns if name not in first))}


def _tokens_as_segments(result: Any, special: bool) -> Units:
    units = units_of(result, "tokens", special)
    names = {"token": "segment"}
    columns = {names.get(name, name): column for name, column in units.columns.items() if name not in ("id", "word")}
    return replace(units, columns=columns)


def _block(
    result: Any, units: Units, scores: np.ndarray, example: int, outputs: np.ndarray, causal: bool
) -> dict[str, np.ndarray]:
    """Return the rows of one example and side; of a causal side without the inputs that do not stand before the output."""
    own = units.of_example(example)
    merged = units.merge(np.add if result.signed else np.hypot, scores[outputs], own)
    before = units.columns["position"][own] < result.spans[example, outputs].max(-1)[:, None]
    rows, columns = np.nonzero(before | (merged != 0) if causal else np.ones(merged.shape, bool))
    chosen = outputs[rows]
    return {
        "example": np.full(len(rows), example),
        **_outputs_of(result, example, chosen),
        **units.take(own[columns]),
        "score": merged[rows, columns],
    }


def _outputs_of(result: Any, example: int, chosen: Any) -> dict[str, np.ndarray]:
    """Return the columns of chosen outputs; where some are spans, their ends in place of their ids."""
    rows = np.asarray(chosen, np.int64)
    tokens = [None if result.output_tokens is None else result.output_tokens[example][index] for index in rows.tolist()]
    if result.outputs.ndim == 2:
        own = {"output": result.outputs[example, rows], "output_id": result.output_ids[example, rows]}
        return own | {"output_token": text_column(tokens)}
    texts = [None if token is None else " ".join(map(show_token, token)) for token in tokens]
    spans = result.spans[example, rows]
    ends = spans.max(-1, initial=-1) + 1
    return {"output": spans[:, 0], "output_end": ends, "output_token": text_column(texts)}


def pair_columns(result: Any, by: Any, special: bool) -> Columns:
    """Return the columns of a `PairAttribution`: a row for each pair of tokens or words, one of each text."""
    first, second = (units_of(side, by, special) for side in (result.a, result.b))
    blocks = []
    for example, scores in enumerate(result.scores):
        own, other = first.of_example(example), second.of_example(example)
        merged = second.merge(np.add, first.merge(np.add, scores, own, 0), other)
        rows, columns = np.indices(merged.shape).reshape(2, -1)
        blocks.append(
            {
                "example": np.full(merged.size, example),
                **first.take(own[rows], "_a"),
                **second.take(other[columns], "_b"),
                "score": merged.ravel(),
            }
        )
    names = [name for name in blocks[0] if name not in ("part_a", "part_b")]  # each side is one text
    return {name: join([block[name] for block in blocks]) for name in names}


def change_columns(result: Any) -> Columns:
    """Return the columns of a `Search` by changes: a row for each token that was substituted, inserted or deleted."""
    rows = [(example, change) for example, changes in enumerate(result.changes()) for change in changes]
    before, after = (
        [-1 if position is None else position for position in positions]
        for positions in ([change.position_before for _, change in rows], [change.position for _, change in rows])
    )
    examples = np.array([example for example, _ in rows], np.int64)
    return {
        "example": examples,
        "kind": text_column([change.kind for _, change in rows]),
        "position_before": optional(before),
        "position": optional(after),
        "before": text_column([change.before for _, change in rows]),
        "after": text_column([change.after for _, change in rows]),
        "objective_before": result.objective_before[examples],
        "objective": result.objective[examples],
    }


def example_columns(result: Any) -> Columns:
    """Return the columns of a `Search` by examples: a row for each example."""
    count = len(result.before)
    success = (
        np.ma.MaskedArray(np.zeros(count, bool), True) if result.success is None else np.ma.MaskedArray(result.success)
    )
    return {
        "example": np.arange(count),
        "objective_before": result.objective_before,
        "objective": result.objective,
        "success": success,
        "changed": result.changed,
        "text_before": text_column(result.texts_before or [None] * count),
        "text": text_column(result.texts or [None] * count),
    }


def substitution_columns(result: Any) -> Columns:
    """Return the columns of `Substitutions`: a row for each searched position and each id that may replace its token."""
    examples, positions, ranks = np.nonzero(result.ids >= 0)
    ids = result.ids[examples, positions, ranks]
    tokens = [
        None if result.tokens is None else result.tokens[row][place]
        for row, place in zip(examples, positions, strict=True)
    ]
    return {
        "example": examples,
        "position": positions,
        "id": result.original[examples, positions],
        "token": text_column(tokens),
        "rank": ranks,
        "other_id": ids,
        "other_token": text_column([None if result.names is None else result.names.get(id_) for id_ in ids.tolist()]),
        "score": result.scores[examples, positions, ranks],
    }


def influence_columns(result: Any) -> Columns:
    """Return the columns of `Influence`: a row for each test example and each of its first training examples."""
    tables = {}
    for kind in ("proponent", "opponent"):
        numbers = getattr(result, f"{kind}s")
        tests, ranks = np.indices(numbers.shape).reshape(2, -1)
        scores = getattr(result, f"{kind}_scores").ravel()
        tables[kind] = {"example": tests, "rank": ranks, "training_example": numbers.ravel(), "score": scores}
    return stack("kind", tables)


def term_columns(result: Any) -> Columns:
    """Return the columns of `Influence` by tokens: a row for each token that a score is the sum of, the largest first."""
    if result.proponent_ids is None:
        raise EmbgradError(
            "the influence has no tokens: call embgrad.tables.influence with tokens=..., the number kept"
        )
    tables = {}
    for kind in ("proponent", "opponent"):
        ids = getattr(result, f"{kind}_ids")
        tests, ranks, places = np.nonzero(ids >= 0)
        own = ids[tests, ranks, places]
        tables[kind] = {
            "example": tests,
            "rank": ranks,
            "training_example": getattr(result, f"{kind}s")[tests, ranks],
            "id": own,
            "token": text_column([None if result.names is None else result.names.get(id_) for id_ in own.tolist()]),
            "score": getattr(result, f"{kind}_terms")[tests, ranks, places],
        }
    return stack("kind", tables)


def metric_columns(result: Any) -> Columns:
    """Return the columns of a `Faithfulness` by examples: a row for each method and example with the metrics."""
    count = len(result.objective)
    metrics = ("aopc_comprehensiveness", "aopc_sufficiency", "loo_correlation", "deletion_area", "insertion_area")
    found = {name: getattr(result, name) for name in metrics}
    return {
        "method": text_column([method for method in result.methods for _ in range(count)]),
        "example": np.tile(np.arange(count), len(result.methods)),
        "tokens": np.tile(result.tokens, len(result.methods)),
        "objective": np.tile(result.objective, len(result.methods)),
        **{name: np.ravel(values) for name, values in found.items() if values is not None},
    }


def share_columns(result: Any) -> Columns:
    """Return the columns of a `Faithfulness` by shares: a row for each method, example and share of tokens."""
    methods, examples, shares = np.indices(result.counts.shape).reshape(3, -1)
    return {
        "method": text_column([result.methods[method] for method in methods.tolist()]),
        "example": examples,
        "share": np.asarray(result.shares, np.float64)[shares],
        "count": result.counts.ravel(),
        "comprehensiveness": result.comprehensiveness.ravel(),
        "sufficiency": result.sufficiency.ravel(),
    }
