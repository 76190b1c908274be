"""The project's own limits, each with the figure of this run and whether it is met."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tests.benchmarks.cases import MODES, ONCE, SPLIT_BY_HAND
from tests.benchmarks.ratios import ANEW, by_hand, fastest, over, over_hand, size_of, times

OF_BY_HAND: Final = 1.02
#: Of calls at points, with several examples and with one.
OF_BY_HAND_AT_POINTS: Final = 1.05
OF_BY_HAND_ALONE: Final = 1.3
OVER_BACKWARD: Final = 1.3
OVER_RIVALS: Final = 1.0
OF_CAPTUMS_PEAK: Final = 0.72
SMALLER: Final = 200
FLAT: Final = 1.05
OVERHEAD: Final = {"PyTorch": 2.0}
#: Milliseconds beyond NumPy's import.
IMPORTS: Final = {"embgrad": ("`import embgrad`, ms", 30), "gradients": ("a first gradient's imports, ms", 120)}

Figures = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Limit:
    """A limit, the measured figure, and that of code by hand, where there is one."""

    what: str
    bound: str
    measured: str
    verdict: str
    by_hand: str = "–"


def limits(figures: Figures, size: tuple[int, int]) -> Iterator[Limit]:
    for row in figures.get("sizes", ()):
        if size_of(row) == size and MODES[row["mode"]] != "reference":
            if "gradients" not in row["times"]:
                yield Limit(f"{row['mode']}: `gradients` / by hand", f"≤ {OF_BY_HAND}", "not measured", "no")
                continue
            hand, backward = over_hand(row), over(row, "gradients", what="backward")
            yield _most(f"{row['mode']}: `gradients` / by hand", hand, OF_BY_HAND)
            lasting = max(over(row, way) for way in by_hand(row) if ANEW not in way)
            if lasting < hand:
                what = f"{row['mode']}: `gradients` / by hand without XLA, which compiles anew for each shape"
                yield _most(what, lasting, OF_BY_HAND)
            faster = _least(f"{row['mode']}: full backward / `gradients`", backward, OVER_BACKWARD)
            yield replace(faster, by_hand=f"{over(row, fastest(row), what='backward'):.3f}")
    for row in figures.get("overhead", ()):
        ours, hand, _, _ = times(row)
        if row["mode"] in OVERHEAD and ours is not None:
            more, most = (ours - hand) * 1e3, OVERHEAD[row["mode"]]
            what = f"{row['mode']}, 1 × 8 tokens, 2 layers: milliseconds over by hand"
            yield Limit(what, f"≤ {most}", f"{more:+.2f}", _verdict(more <= most))
    for row in figures.get("imports", ()):
        if row["what"] in IMPORTS:
            what, most = IMPORTS[row["what"]]
            yield Limit(what, f"≤ {most}", f"{row['seconds'] * 1e3:.1f}", _verdict(row["seconds"] * 1e3 <= most))
    yield from _of_points(figures.get("points", ()))
    for row in figures.get("tables", ()):
        by = row["times"][SPLIT_BY_HAND] / row["times"][ONCE]
        what = f"{row['examples']} × {row['positions']}: split backward by hand / one backward pass and per_example()"
        yield _least(what, by, row["examples"] / 2)
        yield _least("dense tables / row-sparse ones, in bytes", row["dense"] / row["sparse"], SMALLER)
    for row in figures.get("long", ()):
        what = f"{row['framework']}: resident memory after {row['sentences']:,} sentences / after 500"
        yield _most(what, row["last"] / row["early"], FLAT)
    yield from _of_rivals(figures)


def _of_rivals(figures: Figures) -> Iterator[Limit]:
    for row in figures.get("rivals", ()):
        what = f"{row['tool']} {row['call']} ({row['note']}): their time / ours"
        if "failed" in row:
            yield Limit(what, f"≥ {OVER_RIVALS}", f"could not be run: {row['failed']}", "no")
        else:
            yield _least(what, over(row, "ours", what="theirs"), OVER_RIVALS)
    for row in figures.get("rivals_peaks", ()):
        if row["tool"] == "captum" and row.get("peaks"):
            what = f"captum {row['call']} ({row['note']}): our peak memory / theirs"
            yield _most(what, row["peaks"]["ours"] / row["peaks"]["theirs"], OF_CAPTUMS_PEAK)


def _of_points(rows: Sequence[Mapping[str, Any]]) -> Iterator[Limit]:
    """Yield the largest price of a point in each framework, of one example and of several."""
    prices: dict[tuple[str, bool], float] = {}
    for row in rows:
        key = row["mode"].rpartition(", ")[0], row["examples"] == 1
        prices[key] = max(prices.get(key, 0.0), over(row, "by hand"))
    for (framework, alone), price in prices.items():
        what = f"{framework}, points, {'one example' if alone else 'several examples'}: `gradients` / by hand, at most"
        yield _most(what, price, OF_BY_HAND_ALONE if alone else OF_BY_HAND_AT_POINTS)


def _most(what: str, figure: float, most: float) -> Limit:
    return Limit(what, f"≤ {most}", f"{figure:.3f}", _verdict(figure <= most))


def _least(what: str, figure: float, least: float) -> Limit:
    return Limit(what, f"≥ {least}", f"{figure:.3f}", _verdict(figure >= least))


def _verdict(met: bool) -> str:
    return "yes" if met else "**no**"
