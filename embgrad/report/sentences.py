"""The sentences of the page: each text once for each result, with its tokens coloured by their figures, side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from embgrad.common.token_text import direction
from embgrad.comparison.align import aligned
from embgrad.display.colours import shade
from embgrad.display.html import Html, tag
from embgrad.display.lines import MOST_PIECES, Line, Piece
from embgrad.errors import BatchError
from embgrad.results.attribution import Attribution
from embgrad.results.gradient_display import KINDS, describe, has_tokens
from embgrad.results.gradients import EmbeddingGradients
from embgrad.results.pieces import pieces_of
from embgrad.results.words import is_special

__all__ = ["Example", "Panel", "sentences"]

#: The name of the figures of an attribution, which has one score a position.
CONTRIBUTION: Final = "contribution"

#: The largest number of tokens on a page, over all results and kinds of figures. A full page takes some MB.
MOST_CELLS: Final = 10_000


@dataclass(frozen=True)
class Panel:
    """One example in one result by one kind of figures.

    Attributes:
        line: its tokens; None where the result does not hold this text.
        summary: the largest figure in words.
    """

    label: str
    line: Line | None = None
    summary: str = ""

    def html(self, heading: str, group: str, direction: str) -> Html:
        """Return the panel for a page, whose buttons have the name `group`."""
        if self.line is None:
            content = [tag("p", f"{self.label} does not hold this text", class_="small")]
        else:
            words: list[list[Html]] = []
            for index, piece in enumerate(self.line.pieces):
                token = _token_html(piece, self.line, group, joined=index > 0 and not piece.before)
                if index and not piece.before:
                    words[-1].append(token)
                else:
                    words.append([token])
            texts = [tag("span", word, class_="w") if len(word) > 1 else word for word in words]
            spaced = [(" " if index else "", text) for index, text in enumerate(texts)]
            strip = f"{self.summary}; full colour is {self.line.largest:.4g}"
            content = [tag("p", spaced, class_="tokens", dir=direction), tag("p", strip, class_="strip small")]
        return tag("fieldset", tag("legend", heading), content)


def _token_html(piece: Piece, line: Line, group: str, joined: bool) -> Html:
    scale, level = shade(piece.score, line.largest, line.signed)
    classes = ["t", *([f"{scale}{level}"] if scale else []), *["s"] * piece.special, *["j"] * joined]
    return tag(
        "label",
        tag("input", type="radio", name=group),
        tag("bdi", piece.text),
        tag("span", piece.title, class_="f"),
        class_=" ".join(classes),
    )


@dataclass(frozen=True)
class Example:
    """One example.

    Attributes:
        direction: the direction of its script, "ltr" or "rtl".
        notes: its objective and what is not shown of it, in words.
        rows: by kind of figures a panel for each result.
    """

    number: int
    direction: str
    notes: tuple[str, ...]
    rows: Mapping[str, tuple[Panel, ...]]

    def html(self) -> Html:
        """Return the example for a page."""
        name, rows, alone = f"e{self.number}", [], True
        for kind, panels in self.rows.items():
            alone = len(panels) == 1
            fields = [
                panel.html(
                    kind.capitalize() + ("" if alone else f", {panel.label}"),
                    f"r{self.number}{kind}{at}",
                    self.direction,
                )
                for at, panel in enumerate(panels)
            ]
            rows.append(tag("div", fields, class_="row"))
        return tag(
            "article",
            tag("h3", f"Example {self.number}", id=name),
            tag("p", "; ".join(self.notes), class_="small") if self.notes else None,
            tag("div", rows, class_="rows single" if alone else "rows"),
            aria_labelledby=name,
        )


@dataclass(eq=False)
class Source:
    """One result with its tokens and their figures.

    Attributes:
        result: the result, whose values have one vector a token; or an attribution.
        examples: for each example of the first result, the index of the same text in this one, -1 for none.
        differences: the relative L2 against the first result at each position of this one, NaN where there is none; None where
            the two were not compared.
        figures: the figures by kind, float64, (example, position).
    """

    label: str
    result: Any
    examples: np.ndarray
    differences: np.ndarray | None = None
    figures: dict[str, np.ndarray] = field(init=False)

    def __post_init__(self) -> None:
        self.figures = (
            {CONTRIBUTION: self.result.scores}
            if isinstance(self.result, Attribution)
            else {name: self.result.saliency(kind).astype(np.float64) for kind, name in KINDS.items()}
        )

    @property
    def scale(self) -> str:
        """The name of the scale, which results of one method share, since their figures compare."""
        return self.result.method if isinstance(self.result, Attribution) else ""

    def line(self, number: int, kind: str, first: str) -> Line | None:
        """Return the tokens of an example of the first result, whose name is `first`; None where the text is not there."""
        example = int(self.examples[number])
        if example < 0:
            return None
        result = self.result
        view = SimpleNamespace(
            ids=result.ids,
            real=result.real,
            tokens=result.tokens,
            parts=getattr(result, "parts", None),
            scores=self.figures[kind],
        )
        (pieces,) = pieces_of(view, "tokens", [example], True)
        differences = () if self.differences is None else self.differences[example].tolist()
        more = [f"not in {first}" if each != each else f"differs from {first} by {each:.1e}" for each in differences]
        titled = describe(result, example, pieces, self.figures, more)
        signed = result.signed if isinstance(result, Attribution) else kind == KINDS["dot"]
        return Line(self.label, "", number, tuple(titled), signed)


def sentences(
    results: Mapping[str, EmbeddingGradients | Attribution],
    differences: Mapping[str, np.ndarray],
    *,
    most_cells: int = MOST_CELLS,
) -> tuple[list[Example], list[str]]:
    """Return the examples of the first result, each beside the same text in the others, and notes about those not shown.

    Args:
        results: the results by label; the others are shown beside the first.
        differences: by label, the relative L2 at each position of the first result, as in `Comparison.per_position`.
        most_cells: the largest number of tokens in all; the first example is always shown.
    """
    unsuitable = [
        label for label, result in results.items() if not isinstance(result, Attribution) and not has_tokens(result)
    ]
    notes = [
        f"{label} has no sentences here: its gradient has the shape {results[label].shape}, which is not one vector a token"
        for label in unsuitable
    ]
    shown = {label: result for label, result in results.items() if label not in unsuitable}
    if not shown:
        return [], notes
    sources = _sources(shown, differences)
    first = sources[0]
    real = first.result.real.sum(1)
    cells = np.cumsum(len(first.figures) * len(sources) * np.minimum(real, MOST_PIECES))
    count = max(1, int((cells <= most_cells).sum()))
    examples = [_example(number, sources) for number in range(min(count, len(real)))]
    if more := len(real) - len(examples):
        notes.append(f"the last {more} of {len(real)} examples are not shown, to keep the page small")
    return examples, [*notes, *_find_unpaired(sources)]


def _sources(results: Mapping[str, Any], differences: Mapping[str, np.ndarray]) -> list[Source]:
    (label, first), *others = results.items()
    sources = [Source(label, first, np.arange(len(first.ids)))]
    for label, result in others:
        try:
            alignment = aligned(first, result)
        except BatchError:  # it holds other texts, and is shown as missing beside each example
            sources.append(Source(label, result, np.full(len(first.ids), -1)))
            continue
        own_differences = None
        if label in differences and differences[label].shape == first.ids.shape:
            inverse = alignment.reversed((result.ids.shape[0], result.ids.shape[1]))
            own_differences = np.where(inverse.matched, inverse.arrange(differences[label]), np.nan)
        sources.append(Source(label, result, alignment.examples(), own_differences))
    return sources


def _find_unpaired(sources: Sequence[Source]) -> Iterator[str]:
    first = sources[0].label
    for source in sources[1:]:
        more = len(source.result.ids) - len(set(source.examples.tolist()) - {-1})
        if more:
            yield f"{more} of the examples of {source.label} are not in {first} and are not shown"


def _example(number: int, sources: Sequence[Source]) -> Example:
    result = sources[0].result
    positions = np.flatnonzero(result.real[number]).tolist()
    notes = [f"objective {text}"] if (text := _objective(number, sources)) else []
    if padded := result.ids.shape[1] - len(positions):
        notes.append(f"{padded} padded positions not shown")
    if len(positions) > MOST_PIECES:
        notes.append(f"the first {MOST_PIECES} of {len(positions)} tokens")
    tokens = () if result.tokens is None else result.tokens[number]
    ordinary = [tokens[at] for at in positions if tokens and not is_special(result, number, at)]
    rows = {kind: _panels(number, kind, sources) for kind in sources[0].figures}
    return Example(number, direction(ordinary), tuple(notes), rows)


def _objective(number: int, sources: Sequence[Source]) -> str:
    """Return the example's objective in each result that has one for each example, as text."""
    texts = []
    for source in sources:
        value, example = source.result.objective, source.examples[number]
        if value is not None and example >= 0 and np.shape(value) == (len(source.result.ids),):
            texts.append(
                f"{float(value[example]):.6g} in {source.label}" if len(sources) > 1 else f"{float(value[example]):.6g}"
            )
    return ", ".join(texts)


def _panels(number: int, kind: str, sources: Sequence[Source]) -> tuple[Panel, ...]:
    """Return the panels of an example, those on one scale by the largest figure of all, so that colours compare."""
    lines = [source.line(number, kind, sources[0].label) for source in sources]
    together: dict[str, list[Piece]] = defaultdict(list)
    for source, line in zip(sources, lines, strict=True):
        together[source.scale] += () if line is None else line.pieces
    ends = {name: Line("", "", number, tuple(pieces), True).largest for name, pieces in together.items()}
    return tuple(
        Panel(source.label)
        if line is None
        else Panel(source.label, replace(line, scale=ends[source.scale]).cut(MOST_PIECES), _summary(line))
        for source, line in zip(sources, lines, strict=True)
    )


def _summary(line: Line) -> str:
    """Return the largest figure of a line in words, and how many are not finite."""
    finite = [piece for piece in line.pieces if not piece.note]
    if not finite:
        return "no finite figure" if line.pieces else "no tokens"
    largest = max(finite, key=lambda piece: abs(piece.score))
    if not largest.score:
        return "zero at every token"
    rest = len(line.pieces) - len(finite)
    more = f"; {rest} {'token has' if rest == 1 else 'tokens have'} no finite figure" if rest else ""
    return f"largest {largest.score:.4g}, {largest.text}{more}"
