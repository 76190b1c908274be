"""Lines of gradients: tokens or words coloured by the kinds of saliency, with all that is known of each token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from embgrad.common.token_text import token_text
from embgrad.display.html import Html, cell, line_html
from embgrad.display.lines import MOST_PIECES, Line, Piece, first_of
from embgrad.results.pieces import pieces_of

__all__ = ["KINDS", "describe", "gradient_cell", "gradient_lines", "has_tokens", "source_of"]

#: The kinds of a gradient's saliency, with their names.
KINDS: Final = {"norm": "magnitude", "dot": "signed"}

#: The most characters of a token where a pointer on it shows its figures.
MOST_DESCRIBED: Final = 200


def gradient_cell(gradients: Any) -> Html:
    """Return the HTML of an `EmbeddingGradients` that notebooks show: the first examples, by each kind of saliency."""
    shape = " × ".join(map(str, gradients.shape))
    heading = f"EmbeddingGradients {shape}, {gradients.values.dtype}"
    summary = f"at {gradients.provenance.get('point', '?')}; {source_of(gradients.provenance)}"
    if not has_tokens(gradients):
        note = f"no sentences: the gradient has the shape {gradients.shape}, which is not one vector a token"
        return cell(heading=heading, summary=summary, notes=[note])
    lengths = len(KINDS) * np.minimum(gradients.real.sum(1), MOST_PIECES)
    shown, note = first_of(lengths, "embgrad.report.write_page shows more")
    by_kind = [gradient_lines(gradients, kind, "tokens", range(shown)) for kind in KINDS]
    lines = [line_html(line.cut(MOST_PIECES), shown > 1) for lines in zip(*by_kind, strict=True) for line in lines]
    return cell(lines, heading=heading, summary=summary, notes=[note] * bool(note))


def gradient_lines(gradients: Any, kind: str, by: str, examples: Sequence[int]) -> list[Line]:
    """Return the lines of examples of gradients, whose pointers show the figures of a token; padding is left out.

    Args:
        kind: "norm" or "dot".
        by: "tokens" or "words".
    """
    figures = {name: gradients.saliency(key).astype(np.float64) for key, name in KINDS.items()}
    source = SimpleNamespace(
        ids=gradients.ids,
        real=gradients.real,
        tokens=gradients.tokens,
        parts=None,
        offsets=None,
        scores=figures[KINDS[kind]],
        words=lambda: gradients.words(kind),
    )
    signed = kind == "dot"
    return [
        Line(
            KINDS[kind],
            "",
            example,
            tuple(pieces if by == "words" else describe(gradients, example, pieces, figures)),
            signed,
        )
        for example, pieces in zip(examples, pieces_of(source, by, examples, True), strict=True)
    ]


def has_tokens(result: Any) -> bool:
    """Return whether a gradient has one vector for each token; points that are named by their paths may have other axes."""
    return bool(result.values.ndim == 3 and result.values.shape[:2] == result.ids.shape)


def source_of(provenance: Mapping[str, Any]) -> str:
    """Return the model and the framework of a result in a few words."""
    versions = provenance.get("versions")
    version = next(iter(versions.values()), "") if isinstance(versions, Mapping) else ""
    model = str(provenance.get("model", "?")).rpartition(".")[2]
    return f"{model}, {provenance.get('backend', '?')} {version}".strip()


def describe(
    result: Any, example: int, pieces: Sequence[Piece], figures: Mapping[str, np.ndarray], more: Sequence[str] = ()
) -> list[Piece]:
    """Return tokens with all that is known of each as the title that a pointer on them shows.

    Args:
        figures: figures of positions by name, (example, position).
        more: a further phrase for each position; none where it is empty.
    """
    titled = []
    types = None if result.types is None or not result.types[example].any() else result.types[example]
    for piece in pieces:
        (position,) = piece.positions
        phrases = [
            *([] if result.tokens is None else [token_text(result.tokens[example][position], MOST_DESCRIBED)]),
            f"position {position}",
            f"id {result.ids[example, position]}",
            *([] if types is None else [f"segment {types[position]}"]),
            *(f"{name} {values[example, position]:.4g}" for name, values in figures.items()),
            *more[position : position + 1],
        ]
        titled.append(piece._replace(title=" · ".join(phrases)))
    return titled
