"""The appendix: all figures as tables of ratios, with each limit beside its figure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from tests.benchmarks.cases import LIMIT_SIZE, ONCE
from tests.benchmarks.limits import limits
from tests.benchmarks.points import PRICED
from tests.benchmarks.ratios import (
    FOR_GOOD,
    HAND,
    KEEPING,
    by_hand,
    fastest,
    joined,
    milliseconds,
    of_the_least,
    over,
    over_hand,
    size_of,
    spread,
    times,
)

Row = Mapping[str, Any]
Figures = Mapping[str, Sequence[Row]]

OPENING: Final = """# All figures

`make bench` writes this page; [Performance](performance.md) says what follows from it and how it is measured. The parts may \
have been run one after the other, on the same machine or another of its kind; each ratio is of functions that took turns in one \
process.

- **by hand**: the fastest of the ways in which an expert would write the same gradient in the same mode ("The ways by hand"). \
All agree with `gradients` to rounding, or there is no row.
- **full backward**: forward and backward pass with the gradients of all weights.
- **forward**: the pass alone, without gradients, as the same mode runs it.
- `gradients` includes its checks, and the copies that it returns: values, activations, objective.

Measured last on:
"""

BY_HAND_AT_POINTS: Final = """`gradients` / by hand (by hand, ms), by the size of the batch. By hand is what a careful user \
writes, which leaves the model as it is:

- PyTorch: hooks that make the modules' outputs leaves, and weights that are frozen for the pass.
- TensorFlow: a tape that watches the rows, which the model takes as `inputs_embeds`, or the output of a layer whose `call` is \
replaced for the pass.
- Gluon: hooks that mark the blocks' outputs. A mark cuts the graph, so that the gradient at several points is pulled back from \
mark to mark.
- JAX: `jax.grad` with respect to zeros that are added to the modules' outputs, operation by operation. `compile=True` stands \
beside the same under one `jax.jit`, and runs no forward pass in Python once its program is kept.
- Keras 3: layers whose `call` is replaced for the pass, and in it the way of the framework.

The language models are a GPT-2 and a T5 with random weights; T5's points are those of its encoder."""


def page(figures: Figures, *, quick: bool) -> str:
    size = LIMIT_SIZE if not quick else (4, 64)
    figures = {**figures, "sizes": joined(figures.get("sizes", ()))}
    parts = [OPENING, "\n".join(_machines(figures)) + "\n"]
    if quick:
        parts.append("**A quick run: small sizes and few rounds, to see that it runs. Its figures are no result.**\n")
    parts += [
        _section("What is asked for", "", _limits(figures, size)),
        _section(f"At {_by(size)}", "", _modes(figures, size)),
        _section("From small to large", "`gradients` / by hand (/ forward).", _sizes(figures)),
        _section("The ways by hand", "Each / forward pass.", _ways(figures, size)),
        _section("One position", "", _positions(figures)),
        _section("Our own overhead",
            "1 × 8 tokens, 2 layers × 128: where overhead shows most. In turns with code by hand alone.",
            _overhead(figures)),
        _section(
            "Other tools' overhead",
            "On a like model with a classifier's head, PyTorch, milliseconds; in turns with `gradients` and code by hand.",
            _overhead_of_rivals(figures),
        ),
        _section("Growth", "2 layers × 128. Ratios to the first row of the mode, and to code by hand.",
            _growth(figures)),
        _section("The price of a point", BY_HAND_AT_POINTS, _points(figures)),
        _section("Each example's own table", "Ratios to the first row.", _tables(figures)),
        _section("Long data", "`embgrad.stream`, a BERT of 2 layers × 384, sentences of 5 to 40 tokens.",
            _long(figures)),
        _section("Cold start", "", _cold(figures)),
        _section("Other tools", "The same question, asked in one process.", _rivals(figures)),
        _section("Attributions",
            "Beside captum, in one process: relative L2 between the figures, the ratios of time and of peak memory.",
            _attributions(figures)),
        _section("Not measured", "", _missing(figures)),
    ]  # fmt: skip
    return "\n".join(part for part in parts if part)


def _machines(figures: Figures) -> Iterator[str]:
    """Yield the machines by framework, with their parts where there are several."""
    parts: dict[str, dict[str, list[str]]] = {}
    for row in figures.get("machine", ()):
        parts.setdefault(row["framework"], {}).setdefault(row["machine"], []).append(row["what"])
    for framework, machines in parts.items():
        for machine, measured in machines.items():
            which = f" ({', '.join(measured)})" if len(machines) > 1 else ""
            yield f"- {framework}{which}: {machine}."


def _section(title: str, text: str, table: Iterable[Sequence[str]]) -> str:
    lines = list(table)
    if len(lines) < 2:
        return ""
    body = markdown(lines)
    return f"## {title}\n\n{text}\n\n{body}\n" if text else f"## {title}\n\n{body}\n"


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Return a table, whose first line is its head, in Markdown."""
    rows = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _limits(figures: Figures, size: tuple[int, int]) -> Iterator[Sequence[str]]:
    yield ("what", "limit", "measured", "by hand", "met")
    for limit in limits(figures, size):
        yield (limit.what, limit.bound, limit.measured, limit.by_hand, limit.verdict)


def _modes(figures: Figures, size: tuple[int, int]) -> Iterator[Sequence[str]]:
    yield (
        "mode",
        "forward, ms",
        "/ forward",
        "by hand / forward",
        "**/ by hand**",
        "of each process",
        "by the least times",
        "/ full backward",
        "peak, MiB: ours",
        "by hand",
        "full backward",
        "kept for backward, MiB: ours",
        "by hand",
    )
    peaks = {row["mode"]: row for row in figures.get("peaks", ()) if size_of(row) == size}
    for row in figures.get("sizes", ()):
        if size_of(row) == size:
            asked = "gradients" in row["times"]
            yield (
                _mode(row),
                milliseconds(row["times"]["forward"]),
                _two(over(row, "forward")) if asked else "–",
                _two(over(row, "forward", what=fastest(row))),
                f"**{_two(over_hand(row))}**" if asked else "**–**",
                spread(row),
                _two(of_the_least(row)) if asked else "–",
                _two(over(row, "backward")) if asked else "–",
                *memory(peaks.get(row["mode"], {})),
            )


def memory(row: Row) -> list[str]:
    """Return the peaks in MiB of `gradients`, by hand and of a full backward pass, and what the first two keep for backward."""
    cells = []
    for kind, names in (("peaks", ("gradients", HAND, "backward")), ("saved", ("gradients", HAND))):
        values = row.get(kind) or {}
        for name in names:
            of_hand = [value for key, value in values.items() if key.startswith(HAND) and KEEPING not in key]
            value = (min(of_hand) if of_hand else None) if name == HAND else values.get(name)
            cells.append("–" if value is None else f"{value:.0f}")
    return cells


def _sizes(figures: Figures) -> Iterator[Sequence[str]]:
    rows = figures.get("sizes", ())
    sizes = list(dict.fromkeys(sorted(size_of(row) for row in rows)))
    yield ("mode", *map(_by, sizes))
    for mode in dict.fromkeys(row["mode"] for row in rows):
        same = {size_of(row): row for row in rows if row["mode"] == mode}
        yield (mode, *(_both(same.get(size)) for size in sizes))


def _both(row: Row | None) -> str:
    """Return the ratios of `gradients` to code by hand and to the forward pass."""
    if row is None or "gradients" not in row["times"]:
        return "–"
    return f"{_two(over_hand(row))} ({_two(over(row, 'forward'))})"


def _two(ratio: float) -> str:
    return f"{ratio:.2f}"


def _ways(figures: Figures, size: tuple[int, int]) -> Iterator[Sequence[str]]:
    yield ("mode", "way", "/ forward")
    for row in figures.get("sizes", ()):
        if size_of(row) == size:
            best = fastest(row)
            for name in by_hand(row):
                way = name.removeprefix(HAND)
                yield (row["mode"], f"**{way}**" if name == best else way, _two(over(row, "forward", what=name)))


def _positions(figures: Figures) -> Iterator[Sequence[str]]:
    yield ("mode", "what is read", "size", "/ by hand", "/ forward")
    for section, what in (("position", "one position of the last layer"), ("language", "a logit at the last position")):
        for row in figures.get(section, ()):
            both = (over_hand(row), over(row, "forward")) if "gradients" in row["times"] else ()
            yield (_mode(row), what, _by(size_of(row)), *(map(_two, both) if both else "––"))


def _overhead(figures: Figures) -> Iterator[Sequence[str]]:
    yield ("mode", "by hand, ms", "over by hand, ms", "over by hand that leaves the model as it is, ms")
    for row in figures.get("overhead", ()):
        ours, hand, _, _ = times(row)
        leaving = min((seconds for way, seconds in by_hand(row).items() if FOR_GOOD not in way), default=None)
        yield (_mode(row), milliseconds(hand), _over(ours, hand), _over(ours, leaving))


def _over(seconds: float | None, less: float | None) -> str:
    return "–" if seconds is None or less is None else f"{(seconds - less) * 1e3:+.2f}"


def _points(figures: Figures) -> Iterator[Sequence[str]]:
    rows = figures.get("points", ())
    sizes = sorted({size_of(row) for row in rows})
    yield ("framework", "layers × dimensions", "points", "forward passes", *map(_by, sizes))
    order = {framework: number for number, framework in enumerate(PRICED)}
    names = {(row["mode"], row["what"]): row["mode"].rpartition(", ") for row in rows}
    for (mode, what), (framework, _, shape) in sorted(names.items(), key=lambda item: order[item[1][0]]):
        same = {size_of(row): row for row in rows if (row["mode"], row["what"]) == (mode, what)}
        passes = sorted({row["passes"] for row in same.values()})
        yield (framework, shape, what, " or ".join(map(str, passes)), *(_price(same.get(size)) for size in sizes))


def _price(row: Row | None) -> str:
    """Return the ratio of `gradients` to code by hand, and the latter's milliseconds."""
    return "–" if row is None else f"{_two(over(row, 'by hand'))} ({milliseconds(row['times']['by hand'])})"


def _overhead_of_rivals(figures: Figures) -> Iterator[Sequence[str]]:
    yield ("tool", "call", "how", "by hand, ms", "theirs over by hand, ms", "ours over by hand, ms")
    for row in figures.get("rivals_small", ()):
        name = f"{row['tool']} {row['version']}"
        if "failed" in row:
            yield (name, row["call"], row["note"], f"could not be run: {row['failed']}", "–", "–")
            continue
        least = row["times"]
        over = [_over(least[whose], least["by hand"]) for whose in ("theirs", "ours")]
        yield (name, row["call"], row["note"], milliseconds(least["by hand"]), *over)


def _growth(figures: Figures) -> Iterator[Sequence[str]]:
    yield (
        "mode",
        "vocabulary",
        "size",
        "time / first",
        "/ by hand",
        "full backward / first",
        "peak, MiB",
        "full backward's",
    )
    peaks = {(row["mode"], row["vocab"]): row["peaks"] for row in figures.get("vocabulary_peaks", ())}
    for section in ("vocabulary", "growth"):
        rows = figures.get(section, ())
        for mode in dict.fromkeys(row["mode"] for row in rows):
            same = [row for row in rows if row["mode"] == mode]
            first = times(same[0])
            for row in same:
                ours, hand, _, backward = times(row)
                memory = peaks.get((mode, row["vocab"]), {}) if section == "vocabulary" else {}
                yield (
                    mode,
                    f"{row['vocab']:,}",
                    _by(size_of(row)),
                    _ratio(ours, first[0]),
                    _ratio(ours, hand),
                    _ratio(backward, first[3]),
                    *(f"{memory[name]:.1f}" if name in memory else "–" for name in ("gradients", "backward")),
                )


def _tables(figures: Figures) -> Iterator[Sequence[str]]:
    yield ("way", "size", "time", "MiB")
    for row in figures.get("tables", ()):
        first = row["times"][ONCE]
        size = f"{_by(size_of(row))}, table {row['vocab']:,} × {row['dim']}"
        for way, seconds in row["times"].items():
            yield (way, size, f"{seconds / first:.3f}", f"{row['sparse']:.1f}" if way == ONCE else "")
        yield ("dense, (example, vocab, dim)", size, "–", f"{row['dense']:.0f}")


def _long(figures: Figures) -> Iterator[Sequence[str]]:
    yield ("framework", "sentences", "MiB after 500", "MiB in the end", "ratio")
    for row in figures.get("long", ()):
        yield (
            row["framework"],
            f"{row['sentences']:,}",
            f"{row['early']:.0f}",
            f"{row['last']:.0f}",
            f"{row['last'] / row['early']:.3f}",
        )


#: What is measured of embgrad's own imports.
OWN_IMPORTS: Final = {
    "embgrad": "`import embgrad`, beyond NumPy",
    "gradients": "a first gradient's imports beyond NumPy, with the reference: a first call, less a later one",
}


def _cold(figures: Figures) -> Iterator[Sequence[str]]:
    yield ("what", "ms", "/ NumPy's import")
    for row in figures.get("imports", ()):
        name = OWN_IMPORTS.get(row["what"], f"the import of {row['what']}, beside it")
        yield (name, milliseconds(row["seconds"]), _two(row["seconds"] / row["numpy"]) if "numpy" in row else "–")
    for row in figures.get("cold", ()):
        if "first" in row:
            yield (f"first call, {row['mode']} ({_by(size_of(row))})", milliseconds(row["first"]), "–")
            yield (f"a later call, {row['mode']}", milliseconds(row["later"]), "–")


def _rivals(figures: Figures) -> Iterator[Sequence[str]]:
    yield (
        "tool",
        "call",
        "how",
        "time, ours / theirs",
        "/ by hand: ours",
        "theirs",
        "peak, MiB: ours",
        "theirs",
        "distance",
    )
    peaks = {(row["tool"], row["call"], row["note"]): row.get("peaks", {}) for row in figures.get("rivals_peaks", ())}
    for row in figures.get("rivals", ()):
        name = f"{row['tool']} {row['version']}"
        if "failed" in row:
            yield (name, row["call"], row["note"], f"could not be run: {row['failed']}", *["–"] * 5)
            continue
        memory = peaks.get((row["tool"], row["call"], row["note"]), {})
        hand = "by hand" in row["times"]
        yield (
            name,
            row["call"],
            row["note"],
            _two(over(row, "theirs", what="ours")),
            *(_two(over(row, "by hand", what=name)) if hand else "–" for name in ("ours", "theirs")),
            *(f"{memory[name]:.0f}" if name in memory else "–" for name in ("ours", "theirs")),
            f"{row['distance']:.0e}" if "distance" in row else "other figures",
        )


def _attributions(figures: Figures) -> Iterator[Sequence[str]]:
    yield ("what", "how", "distance, float64", "float32", "time, ours / theirs", "peak, ours / theirs")
    for row in figures.get("attributions", ()):
        distances = (f"{row[dtype]:.0e}" if dtype in row else "–" for dtype in ("float64", "float32"))
        ratios = (_two(row[name]) if name in row else "–" for name in ("time", "peak"))
        yield (row["what"], row["note"] or "–", *distances, *ratios)


def _missing(figures: Figures) -> Iterator[Sequence[str]]:
    yield ("what", "why")
    for row in figures.get("missing", ()):
        yield (row["what"], _cell(row["why"]))
    for rows in figures.values():
        for row in rows:
            if row.get("refused"):
                yield (f"`gradients`, {row['mode']}, {_by(size_of(row))}", _cell(row["refused"]))
            if row.get("uncompiled"):
                yield (f"a kept trace, {row['mode']}, {_by(size_of(row))}", _cell(row["uncompiled"]))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _mode(row: Row) -> str:
    return f"{row['mode']} (ran without a trace)" if row.get("uncompiled") else str(row["mode"])


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]} × {size[1]}"


def _ratio(seconds: float | None, base: float | None) -> str:
    return "–" if seconds is None or base is None else _two(seconds / base)
