"""Matrices of scores: of the outputs and the inputs of one example, or of the tokens of the two texts of a pair."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from embgrad.common.text import visible
from embgrad.common.token_text import show_token
from embgrad.display.lines import GAP, Piece, TokenMatrix, examples_of
from embgrad.errors import EmbgradError, brief
from embgrad.results.pieces import Unit, is_of_segments, pieces_of, source_text, unit_of

__all__ = ["matrix_of", "pair_matrix_of"]


def matrix_of(attribution: Any, example: Any, by: Unit | None, special: bool, fallback: Sequence[str]) -> TokenMatrix:
    """Return the matrix of one example of a `TokenAttribution`.

    Args:
        by: the unit of both axes, see `lines_of`; None for the first of `fallback` that the attribution has. The decoder of an
            encoder-decoder has words where those are the unit and its tokens are known, else tokens.
    """
    index = _index_of(example, len(attribution.ids))
    alone = _restrict(attribution, index)
    if not (alone.outputs >= 0).any():
        raise EmbgradError(f"the example {index} has no output tokens: choose another example")
    sides = [alone.of_output(0), *([] if alone.decoder_ids is None else [alone.of_output(0, decoder=True)])]
    several = alone.outputs.ndim == 2 and _find_repeated(alone)
    units = [unit_of(sides[:1], by, ("tokens",) if several else fallback)]
    if len(sides) > 1:
        units.append("words" if units[0] == "words" and sides[1].tokens is not None else "tokens")
    whole = [pieces_of(side, unit, [0], True)[0] for side, unit in zip(sides, units, strict=True)]
    texts = [
        pieces_of(side, unit, [0], special)[0]  # without the special tokens inside of segments
        if is_of_segments(unit)
        else [piece for piece in pieces if special or not piece.special]
        for side, unit, pieces in zip(sides, units, whole, strict=True)
    ]
    outputs = (
        _spans(alone, sides[-1], whole[-1])
        if alone.outputs.ndim == 3
        else _outputs(alone, sides[-1], whole[-1], units[-1])
    )
    return _fill(alone, index, outputs, texts)


def pair_matrix_of(attribution: Any, pair: Any, by: Unit | None, special: bool, fallback: Sequence[str]) -> TokenMatrix:
    """Return the matrix of one pair of a `PairAttribution`.

    Args:
        by: the unit of both axes, see `lines_of`; None for the first of `fallback` that both sides have.
    """
    index = _index_of(pair, len(attribution.scores))
    sides = attribution.a, attribution.b
    unit = unit_of(sides, by, fallback)
    named = unit if isinstance(unit, str) else "parts"
    rows, columns = (pieces_of(side, unit, [index], special)[0] for side in sides)
    outputs = [piece for piece in rows if piece.positions]
    inputs = [piece for piece in columns if piece.positions]
    if not outputs or not inputs:
        raise EmbgradError(f"a text of the pair {index} has no tokens but special ones: pass special=True")
    scores = _sum_up(np.add, attribution.scores[index], [piece.positions for piece in outputs], inputs)
    totals = scores.sum(1).tolist()
    return TokenMatrix(
        example=index,
        outputs=tuple(piece._replace(score=total) for piece, total in zip(outputs, totals, strict=True)),
        texts=(tuple(columns),),
        scores=scores,
        earlier=np.ones(scores.shape, bool),
        signed=True,
        summary=visible(
            f"{attribution.a.provenance['objective']['of']} {attribution.similarity[index]:.4g}, "
            f"explained {attribution.explained[index]:.4g}, {attribution.method} at {attribution.a.provenance['point']}"
        ),
        names=(f"{named} of the first text", f"{named} of the second text"),
        value="sum",
    )


def _restrict(attribution: Any, example: int) -> Any:
    """Return an attribution of one of its examples."""
    of_all = {field.name: getattr(attribution, field.name) for field in fields(attribution)}
    one = {
        name: value if value is None or name == "provenance" else value[example : example + 1]
        for name, value in of_all.items()
    }
    return replace(attribution, **one)


def _index_of(example: Any, count: int) -> int:
    """Return the index of an example, from 0."""
    if isinstance(example, bool) or not isinstance(example, (int, np.integer)) or not -count <= example < count:
        raise EmbgradError(f"example is {brief(example)}: expected the index of an example, from 0 to {count - 1}")
    return examples_of(example, count)[0]


def _outputs(alone: Any, side: Any, pieces: Sequence[Piece], unit: Unit) -> list[tuple[Piece, list[int]]]:
    """Return the outputs with the indices of their output tokens: the pieces of the text of which they are a part."""
    indices_at: dict[int, list[int]] = defaultdict(list)
    for index, position in enumerate(alone.outputs[0].tolist()):
        indices_at[position].append(index)
    if unit != "tokens" and (repeated := _find_repeated(alone)):
        raise EmbgradError(f"the output at position {repeated[0]} is there more than once: expected by='tokens'")
    outputs: list[tuple[Piece, list[int]]] = []
    space = ""
    for piece in pieces:
        positions = tuple(position for position in piece.positions if position in indices_at)
        members = [index for position in positions for index in indices_at[position]]
        gap = bool(outputs) and bool(positions) and outputs[-1][0].positions[-1] + 1 < positions[0]
        before = GAP if gap else space if space.isspace() else piece.before
        space = "" if piece.positions else piece.text  # that between two spans
        for indices in [[index] for index in members] if unit == "tokens" else [members] if members else []:
            text = _output_text(alone, side, piece, positions, indices, unit)
            score = float(alone.objective[0, indices].sum())
            outputs.append((Piece(text, positions, score, piece.special, before), indices))
            before = " "
    return outputs


def _spans(alone: Any, side: Any, pieces: Sequence[Piece]) -> list[tuple[Piece, list[int]]]:
    """Return the outputs, of which some are spans and so are not merged with others, in the order of the attribution."""
    special = {position for piece in pieces if piece.special for position in piece.positions}
    outputs = []
    for index, span in enumerate(alone.outputs[0]):
        positions = tuple(span[span >= 0].tolist())
        if positions:
            text = "" if side.offsets is None else source_text(side, 0, positions)
            text = text or " ".join(_token(alone, index, number) for number in range(len(positions)))
            score = float(alone.objective[0, index])
            outputs.append((Piece(text, positions, score, special >= {*positions}, GAP), [index]))
    return outputs


def _find_repeated(alone: Any) -> list[int]:
    """Return the positions of outputs that are there more than once, as with several other ids to compare with."""
    positions, counts = np.unique(alone.outputs[alone.outputs >= 0], return_counts=True)
    return list(positions[counts > 1].tolist())


def _output_text(
    alone: Any, side: Any, piece: Piece, positions: tuple[int, ...], indices: Sequence[int], unit: Unit
) -> str:
    if is_of_segments(unit) or (unit != "tokens" and positions == piece.positions):
        return piece.text
    if unit != "tokens" and side.offsets is not None and (located := source_text(side, 0, positions)):
        return located
    text = "".join(_token(alone, index) for index in indices)
    if alone.contrast_ids is not None and int(alone.outputs[0, indices[0]]) in _find_repeated(alone):
        text += f" (not {alone.contrast_ids[0, indices[0]]})"
    return text


def _token(alone: Any, index: int, *number: int) -> str:
    """Return the text of an output token; of a span that of the token of this number."""
    if alone.output_tokens is None:
        return str(alone.output_ids[0][index][number])
    token = alone.output_tokens[0][index]
    return show_token(token[number[0]] if number else token)


def _fill(
    alone: Any, example: int, outputs: Sequence[tuple[Piece, list[int]]], texts: Sequence[Sequence[Piece]]
) -> TokenMatrix:
    columns = [piece for text in texts for piece in text if piece.positions]
    if not columns:
        raise EmbgradError(f"the example {example} has no inputs but special tokens: pass special=True")
    sums = np.add if alone.signed else np.hypot
    rows = [indices for _, indices in outputs]
    split = sum(bool(piece.positions) for piece in texts[0])
    sides = [(alone.scores[0], columns[:split])]
    causal = np.arange(len(columns)) >= (0 if alone.decoder_scores is None else split)
    if alone.decoder_scores is not None:
        sides.append((alone.decoder_scores[0], columns[split:]))
    scores = np.concatenate([_sum_up(sums, values, rows, pieces) for values, pieces in sides], axis=1)
    first = np.array([piece.positions[0] for piece in columns])
    last = np.array([piece.positions[-1] for piece, _ in outputs])
    totals = iter(sums.reduce(scores, axis=0).tolist())
    source = alone.provenance
    return TokenMatrix(
        example=example,
        outputs=tuple(piece for piece, _ in outputs),
        texts=tuple(
            tuple(piece._replace(score=next(totals) if piece.positions else 0.0) for piece in text) for text in texts
        ),
        scores=scores,
        earlier=~causal | (first < last[:, None]) | (scores != 0),
        signed=alone.signed,
        summary=visible(
            f"{alone.method} at {source.get('point')} of {str(source.get('model', '?')).rpartition('.')[2]}"
        ),
    )


def _sum_up(sums: np.ufunc, values: np.ndarray, rows: Sequence[Sequence[int]], columns: Sequence[Piece]) -> np.ndarray:
    """Return the scores of groups of outputs and of positions, each group put together by a ufunc."""
    if not columns:
        return np.zeros((len(rows), 0))
    for axis, groups in enumerate((rows, [piece.positions for piece in columns])):
        starts = np.cumsum([0, *map(len, groups[:-1])])
        values = sums.reduceat(np.take(values, np.concatenate(groups).astype(int), axis), starts, axis)
    return values
