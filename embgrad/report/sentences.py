"""The sentences of the page: tokens with their figures and colours, side by side for each result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from embgrad.common.colours import LEVELS
from embgrad.common.token_text import direction, token_text
from embgrad.comparison.align import aligned
from embgrad.errors import BatchError
from embgrad.results.attribution import Attribution
from embgrad.results.gradients import EmbeddingGradients
from embgrad.results.words import is_special

__all__ = [
    "KINDS",
    "Cell",
    "Example",
    "Panel",
    "Row",
    "Sentences",
    "Source",
    "has_sentences",
    "sentences",
]

#: The kinds of saliency, with their headings.
KINDS: Final = {"norm": "Magnitude", "dot": "Signed"}

#: The same of an attribution, which has one score a position.
SCORES: Final = {"score": "Contribution"}

#: The largest number of tokens on a page, over all results and both kinds, and in one example. A full page takes some MB.
MOST_CELLS, MOST_POSITIONS = 10_000, 512


@dataclass(frozen=True)
class Cell:
    """A token on the page.

    Attributes:
        text: the displayed text.
        scale: "n" for a magnitude, "p" or "m" for above or below zero; "" for zero and for figures that are not finite.
        level: the step of the scale, 0 to LEVELS.
        special: whether the token is a special one, such as "[CLS]".
        joined: whether the token continues the word of the token before it.
        figures: the figures of the token, as phrases.
    """

    text: str
    scale: str
    level: int
    special: bool
    joined: bool
    figures: tuple[str, ...]

    @property
    def style(self) -> str:
        """The token's class in the stylesheet, such as "n7"."""
        return f"{self.scale}{self.level}" if self.scale else ""


@dataclass(frozen=True)
class Panel:
    """One example in one result: its tokens, or the reason why there are none; `scale` is the figure with full colour."""

    label: str
    cells: tuple[Cell, ...] = ()
    missing: str = ""
    summary: str = ""
    scale: str = ""

    @property
    def words(self) -> list[list[Cell]]:
        """The tokens, grouped by word."""
        words: list[list[Cell]] = []
        for cell in self.cells:
            if cell.joined and words:
                words[-1].append(cell)
            else:
                words.append([cell])
        return words


@dataclass(frozen=True)
class Row:
    """One example's panels of one kind, one for each result; those of gradients, or of one method, are on one scale."""

    kind: str
    heading: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Example:
    """One example: its heading, notes and rows."""

    number: int
    direction: str
    objective: str
    notes: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Sentences:
    """The examples that are shown, and notes about those that are not."""

    examples: tuple[Example, ...]
    notes: tuple[str, ...] = ()


@dataclass(eq=False)
class Source:
    """One result with its tokens and their figures.

    Attributes:
        label: the result's name on the page.
        result: the result, whose values have one vector a token; or an attribution.
        examples: for each example of the first result, the index of the same text in this one, -1 for none.
        differences: the relative L2 against the first result at each position of this one, NaN where there is none; None where
            the two were not compared.
        saliency: the saliency by kind, float64, (example, position).
    """

    label: str
    result: Any
    examples: np.ndarray
    differences: np.ndarray | None = None
    saliency: dict[str, np.ndarray] = field(init=False)
    _groups: dict[int, list[tuple[int, ...]]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.saliency = (
            {"score": self.result.scores}
            if isinstance(self.result, Attribution)
            else {kind: self.result.saliency(kind).astype(np.float64) for kind in KINDS}
        )

    @property
    def kinds(self) -> Mapping[str, str]:
        """The kinds of figures, with their headings."""
        return SCORES if isinstance(self.result, Attribution) else KINDS

    @property
    def scale(self) -> str:
        """The name of the scale, which results of one method share, since their figures compare."""
        return self.result.method if isinstance(self.result, Attribution) else ""

    def is_signed(self, kind: str) -> bool:
        """Return whether figures may be below zero."""
        return self.result.signed if isinstance(self.result, Attribution) else kind == "dot"

    def groups(self, example: int) -> list[tuple[int, ...]]:
        """Return the positions of each of the example's words, without padding."""
        if example not in self._groups:
            self._groups[example] = _groups(self.result, example)
        return self._groups[example]

    def positions(self, example: int) -> list[int]:
        """Return the real positions of one example."""
        return [position for group in self.groups(example) for position in group]

    def token(self, example: int, position: int) -> str | None:
        """Return the token's text, or None where it is not known."""
        tokens = self.result.tokens
        return None if tokens is None else tokens[example][position]

    def is_special(self, example: int, position: int) -> bool:
        """Return whether a token is a special one, which does not count for the scale."""
        return is_special(self.result, example, position)


def has_sentences(result: EmbeddingGradients | Attribution) -> bool:
    """Return whether the values have one vector a token; points that are named by their paths may have other axes."""
    return isinstance(result, Attribution) or (result.values.ndim == 3 and result.values.shape[:2] == result.ids.shape)


def sentences(
    results: Mapping[str, EmbeddingGradients | Attribution],
    differences: Mapping[str, np.ndarray],
    *,
    most_cells: int = MOST_CELLS,
    most_positions: int = MOST_POSITIONS,
) -> Sentences:
    """Return the examples of the first result, each beside the same text in the others.

    Args:
        results: the results by label; the others are shown beside the first.
        differences: by label, the relative L2 at each position of the first result, as in `Comparison.per_position`.
        most_cells: the largest number of tokens in all; the first example is always shown.
        most_positions: the largest number of tokens in one example.
    """
    unsuitable = [label for label, result in results.items() if not has_sentences(result)]
    notes = [
        f"{label} has no sentences here: its gradient has the shape {results[label].shape}, which is not one vector a token"
        for label in unsuitable
    ]
    shown = {label: result for label, result in results.items() if label not in unsuitable}
    if not shown:
        return Sentences((), tuple(notes))
    sources = _sources(shown, differences)
    first = sources[0]
    examples: list[Example] = []
    remaining = most_cells
    for number in range(len(first.result.ids)):
        remaining -= len(first.kinds) * len(sources) * min(len(first.positions(number)), most_positions)
        if remaining < 0 and examples:
            break
        examples.append(_example(number, sources, most_positions))
    more = len(first.result.ids) - len(examples)
    if more:
        notes.append(f"the last {more} of {len(first.result.ids)} examples are not shown, to keep the page small")
    return Sentences(tuple(examples), (*notes, *_unpaired(sources)))


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


def _unpaired(sources: Sequence[Source]) -> Iterator[str]:
    first = sources[0].label
    for source in sources[1:]:
        more = len(source.result.ids) - len(set(source.examples.tolist()) - {-1})
        if more:
            yield f"{more} of the examples of {source.label} are not in {first} and are not shown"


def _groups(result: Any, example: int) -> list[tuple[int, ...]]:
    if result.tokens is None:
        return [(position,) for position in np.flatnonzero(result.real[example]).tolist()]
    of_class = ("scores",) if isinstance(result, Attribution) else ("values", "activations")
    names = (*of_class, "ids", "mask", "tokens", "words_of")
    fields = {name: getattr(result, name) for name in names}
    single: dict[str, Any] = {
        name: None if value is None else value[example : example + 1] for name, value in fields.items()
    }
    return [word.positions for word in replace(result, **single).words()[0]]


def _example(number: int, sources: Sequence[Source], most: int) -> Example:
    first = sources[0]
    positions = first.positions(number)
    notes = []
    padded = first.result.ids.shape[1] - len(positions)
    if padded:
        notes.append(f"{padded} padded positions not shown")
    if len(positions) > most:
        notes.append(f"the first {most} of {len(positions)} tokens")
    return Example(
        number=number,
        direction=direction(
            first.token(number, position) or "" for position in positions if not first.is_special(number, position)
        ),
        objective=_objective(number, sources),
        notes=tuple(notes),
        rows=tuple(_row(number, kind, sources, most) for kind in first.kinds),
    )


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


def _row(number: int, kind: str, sources: Sequence[Source], most: int) -> Row:
    ends = {
        name: _scale(number, kind, [source for source in sources if source.scale == name])
        for name in {source.scale for source in sources}
    }
    panels = tuple(
        _panel(source, int(source.examples[number]), kind, ends[source.scale], most, sources[0]) for source in sources
    )
    return Row(kind, sources[0].kinds[kind], panels)


def _scale(number: int, kind: str, sources: Sequence[Source]) -> float:
    """Return the figure that has full colour: the largest of the example's tokens in any result, so that colours compare.

    Special tokens, whose figures are often far larger, count only where there are no others.
    """
    ordinary: list[float] = []
    special: list[float] = []
    for source in sources:
        example = int(source.examples[number])
        for position in source.positions(example) if example >= 0 else ():
            figure = abs(float(source.saliency[kind][example, position]))
            if np.isfinite(figure):
                (special if source.is_special(example, position) else ordinary).append(figure)
    return max(ordinary, default=0.0) or max(special, default=0.0)


def _panel(source: Source, example: int, kind: str, end: float, most: int, first: Source) -> Panel:
    if example < 0:
        return Panel(source.label, missing=f"{source.label} does not hold this text")
    cells = tuple(_cells(source, example, kind, end, most, first.label))
    figures = source.saliency[kind][example]
    finite = [position for position in source.positions(example) if np.isfinite(figures[position])]
    if not finite:
        return Panel(source.label, cells, summary="no finite figure" if cells else "no tokens", scale=f"{end:.4g}")
    largest = max(finite, key=lambda position: abs(figures[position]))
    text = f"largest {figures[largest]:.4g}, {_shown(source, example, largest)}"
    if len(finite) < len(source.positions(example)):
        count = len(source.positions(example)) - len(finite)
        text += f"; {count} {'token has' if count == 1 else 'tokens have'} no finite figure"
    return Panel(source.label, cells, summary=text if figures[largest] else "zero at every token", scale=f"{end:.4g}")


def _cells(source: Source, example: int, kind: str, end: float, most: int, first: str) -> Iterator[Cell]:
    count = 0
    for group in source.groups(example):
        for position in group:
            if count == most:
                return
            count += 1
            figure = float(source.saliency[kind][example, position])
            scale, level = _step(figure, end, source.is_signed(kind))
            yield Cell(
                text=_shown(source, example, position),
                scale=scale,
                level=level,
                special=source.is_special(example, position),
                joined=position != group[0],
                figures=tuple(_figures(source, example, position, first)),
            )


def _step(figure: float, end: float, signed: bool) -> tuple[str, int]:
    if not np.isfinite(figure) or figure == 0:
        return "", 0
    level = round(LEVELS * min(1.0, abs(figure) / end)) if end else LEVELS
    return "n" if not signed else "p" if figure > 0 else "m", level


def _figures(source: Source, example: int, position: int, first: str) -> Iterator[str]:
    result = source.result
    token = source.token(example, position)
    if token is not None:
        yield token_text(token, 200)
    yield f"position {position}"
    yield f"id {result.ids[example, position]}"
    if result.types is not None and result.types[example].any():
        yield f"segment {result.types[example, position]}"
    for kind, name in source.kinds.items():
        yield f"{name.lower()} {source.saliency[kind][example, position]:.4g}"
    if source.differences is not None:
        difference = source.differences[example, position]
        yield f"not in {first}" if np.isnan(difference) else f"differs from {first} by {difference:.1e}"


def _shown(source: Source, example: int, position: int) -> str:
    """Return the token without the marks by which tokenizers join sub-words, or its id where the text is not known."""
    token = source.token(example, position)
    if token is None:
        return str(source.result.ids[example, position])
    bare = token.removeprefix("##").lstrip("Ġ▁")
    if bare or not token:
        return token_text(bare)
    return token_text(token) if token.startswith("##") else "␣"
