"""The page for readers: a text with a few small tables, each of which is filled from the figures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from tests.benchmarks.cases import LIMIT_SIZE
from tests.benchmarks.ratios import fastest, joined, milliseconds, over, over_hand, size_of
from tests.benchmarks.table import markdown, memory

Figures = Mapping[str, Sequence[Mapping[str, Any]]]
Table = Iterator[Sequence[str]]

#: The sizes, the shape of the model and the points of the table on hidden states.
SIZES: Final = ((1, 16), (4, 64), (16, 128))
SHAPE: Final = "6 × 384"
POINTS: Final = ("word", "layer.0", "layer.-1")


def fill(text: str, figures: Figures) -> str:
    """Return the text with the tables between `<!-- table: NAME -->` and `<!-- end -->` made anew from the figures."""

    def filled(match: re.Match[str]) -> str:
        lines = list(TABLES[match[1]](figures))
        return f"<!-- table: {match[1]} -->\n\n{markdown(lines)}\n\n<!-- end -->"

    return re.sub(r"<!-- table: (.+?) -->\n.*?<!-- end -->", filled, text, flags=re.DOTALL)


def _price(figures: Figures) -> Table:
    yield (
        "",
        "one gradient, in forward passes",
        "beside code by hand",
        "all weights, in forward passes",
        "peak, MiB",
        "by hand",
        "all weights",
    )
    peaks = {row["mode"]: row for row in figures.get("peaks", ()) if size_of(row) == LIMIT_SIZE}
    for row in joined(figures.get("sizes", ())):
        if size_of(row) == LIMIT_SIZE and "gradients" in row["times"]:
            yield (
                row["mode"],
                f"{over(row, 'forward'):.2f}",
                f"{over_hand(row):.2f}",
                f"{over(row, 'forward', what='backward'):.2f}",
                *memory(peaks.get(row["mode"], {}))[:3],
            )


def _hidden(figures: Figures) -> Table:
    yield ("", "at", *(f"{examples} × {positions}" for examples, positions in SIZES))
    rows = {(row["mode"], row["what"], size_of(row)): row for row in figures.get("points", ())}
    for mode in dict.fromkeys(mode for mode, _, _ in rows):
        framework, _, shape = mode.rpartition(", ")
        for what in POINTS if shape == SHAPE else ():
            prices = [rows.get((mode, what, size)) for size in SIZES]
            yield (framework, f"`{what}`", *("–" if row is None else f"{over(row, 'by hand'):.2f}" for row in prices))


def _small(figures: Figures) -> Table:
    yield ("", "code by hand, ms", "embgrad, ms more")
    for row in figures.get("overhead", ()):
        hand = row["times"][fastest(row)]
        yield (row["mode"], milliseconds(hand), f"{(row['times']['gradients'] - hand) * 1e3:.1f}")


def _rivals(figures: Figures) -> Table:
    yield ("", "asked for", "time, embgrad's / theirs", "peak, MiB: embgrad", "theirs")
    peaks = {_named(row): row.get("peaks") or {} for row in figures.get("rivals_peaks", ())}
    for row in figures.get("rivals", ()):
        if "failed" not in row:
            memory = (peaks.get(_named(row), {}).get(whose) for whose in ("ours", "theirs"))
            cells = ("–" if value is None else f"{value:.0f}" for value in memory)
            yield (
                f"{row['tool']} {row['version']}",
                f"{row['call']}, {row['note']}",
                f"{over(row, 'theirs', what='ours'):.2f}",
                *cells,
            )


def _named(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["tool"], row["call"], row["note"]


#: The tables by their names in the text.
TABLES: Final[Mapping[str, Callable[[Figures], Table]]] = {
    "price": _price, "hidden states": _hidden, "small calls": _small, "other tools": _rivals,
}  # fmt: skip
