"""Attributions in the terminal: one line of coloured words for each example, and the legend."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from embgrad.cli.terminal import Terminal
from embgrad.cli.token_colours import legend, painted, pieces
from embgrad.errors import EmbgradError
from embgrad.results.attribution import Attribution

__all__ = ["attribution_legend", "attribution_lines"]


def attribution_lines(attribution: Attribution, terminal: Terminal, *, words: bool) -> list[Any]:
    """Return one line of text for each example: its words, or its tokens, coloured by score.

    Raises:
        EmbgradError: words are wanted, and the tokens are not known.
    """
    if words and attribution.tokens is None:
        raise EmbgradError("the tokens of this attribution are not known, only their ids: omit --words")
    scored: Any = SimpleNamespace(
        ids=attribution.ids,
        mask=attribution.mask,
        tokens=attribution.tokens,
        parts=attribution.parts,
        saliency=lambda kind: attribution.scores,
        words=lambda kind: attribution.words(),
    )
    kind = _kind(attribution)
    examples = () if terminal.as_json else range(len(attribution.ids))
    return [painted(pieces(scored, example, kind, words), kind, terminal.coloured) for example in examples]


def attribution_legend(attribution: Attribution, coloured: bool) -> str:
    """Return the legend of the colours or digits."""
    if not attribution.signed:
        return legend("norm", coloured)
    return (
        "contribution: orange is above zero, blue below"
        if coloured
        else "contribution, -9 to +9; 9 is the example's largest"
    )


def _kind(attribution: Attribution) -> str:
    return "dot" if attribution.signed else "norm"
