"""Display of attributions: plots, HTML, LaTeX, the terminal and notebooks, of one method or of several side by side."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from embgrad.common.options import expect_flag
from embgrad.errors import EmbgradError, brief
from embgrad.results.html import document, fragment
from embgrad.results.latex import latex
from embgrad.results.pictures import bars, heat_map
from embgrad.results.pieces import Line, examples_of, lines_of
from embgrad.results.terminal import print_lines

__all__ = ["Displayed"]

#: The units shown by default, in order of preference.
OF_TEXT: Final = ("spans", "words", "tokens")
OF_PLOTS: Final = ("words", "tokens")

#: The most examples in a notebook's cell.
MOST_EXAMPLES: Final = 10


class Displayed(ABC):
    """A base class of results that can be displayed."""

    @abstractmethod
    def _by_name(self) -> Mapping[str, Any]:
        """Return the attributions by name; one by itself has the empty name."""

    def _lines(self, examples: Any, by: str | None, special: bool, fallback: tuple[str, ...]) -> list[list[Line]]:
        expect_flag(special, "special")
        self._expect_one_batch()
        named = self._by_name()
        count = len(next(iter(named.values())).ids)
        return lines_of(named, examples_of(examples, count), by, special, fallback)

    def _expect_one_batch(self) -> None:
        named = self._by_name()
        if other := _of_another_batch(named):
            raise EmbgradError(
                f"the attributions {next(iter(named))!r} and {other!r} are of different ids or texts: expected those of one "
                "batch; show each by itself"
            )

    def plot(self, examples: Any = None, *, by: str | None = None, special: bool = True, ax: Any = None) -> Any:
        """Draw the scores with Matplotlib: bars for one text by one method, else a heat map with a row for each.

        In a heat map of several texts all colours are on one scale; of several methods each row has its own, since their scores
        are of different sizes. Blue is below zero, orange above; scores without a sign are purple. Special tokens do not count
        for the scale.

        Args:
            examples: the index of an example, or a list or slice of indices; None for all, for several methods the first.
            by: "tokens", "words", "spans" or "sentences"; None for words, or tokens where words are not known.
            special: whether special tokens are shown.
            ax: the axes to draw on; None makes a new figure with `matplotlib.pyplot.subplots`. It is not shown: end with
                `plt.show()` outside of notebooks.

        Returns:
            The `matplotlib.axes.Axes`.

        Raises:
            EmbgradError: Matplotlib is not installed (`pip install 'embgrad[plot]'`); there is no such example or unit; several
                examples are asked for of several methods; or the tokens, or for spans the texts, are not known.
        """
        several = len(self._by_name()) > 1
        lines = self._lines(0 if several and examples is None else examples, by, special, OF_PLOTS)
        if several and len(lines) > 1:
            raise EmbgradError(
                f"examples is {brief(examples)}: expected one example, since the rows are the {len(lines[0])} methods; plot each "
                "method by itself"
            )
        if several:
            return heat_map(lines[0], [line.label for line in lines[0]], True, ax)
        if len(lines) == 1:
            return bars(lines[0][0], ax)
        return heat_map([line for (line,) in lines], [f"{line.example}" for (line,) in lines], False, ax)

    def to_html(self, examples: Any = None, *, by: str | None = None, special: bool = True) -> str:
        """Return a page of HTML with the texts coloured by their scores, which a pointer on them shows in numbers.

        The page needs nothing else, has no scripts, and escapes the texts; write it to a file in UTF-8. Each text has its own
        scale for each method.

        Args:
            examples: the index of an example, or a list or slice of indices; None for all.
            by: "tokens", "words", "spans" or "sentences"; None for spans, or words where the texts or the tokens' offsets in
                them are not known, or tokens.
            special: whether special tokens are shown.

        Raises:
            EmbgradError: there is no such example or unit; or the tokens, or for spans the texts, are not known.
        """
        lines = self._lines(examples, by, special, OF_TEXT)
        return document(lines, " · ".join(dict.fromkeys(line.label or line.summary for line in lines[0])))

    def to_latex(self, examples: Any = None, *, by: str | None = None, special: bool = True) -> str:
        """Return LaTeX of the texts, a paragraph for each text and method, for a document with `\\usepackage{xcolor}`.

        Characters with a meaning in LaTeX are escaped. Others are left to the document's fonts: letters beyond Latin need XeLaTeX
        or LuaLaTeX and a font that has them. The arguments and errors are those of `to_html`.
        """
        return latex(self._lines(examples, by, special, OF_TEXT))

    def show(self, examples: Any = None, *, by: str | None = None, special: bool = True) -> None:
        """Print the texts in the terminal, coloured by their scores; with digits, 9 for the largest, where there are no colours.

        Colours need the package Rich and a terminal of 256 colours, and respect the variable `NO_COLOR`. The arguments and errors
        are those of `to_html`.
        """
        print_lines(self._lines(examples, by, special, OF_TEXT))

    def _repr_html_(self) -> str | None:
        """Return the HTML that notebooks show: the first examples; None for attributions of several batches, shown as text."""
        named = self._by_name()
        if _of_another_batch(named):
            return None
        count = len(next(iter(named.values())).ids)
        more = count - MOST_EXAMPLES
        note = f"the first {MOST_EXAMPLES} of {count} examples; to_html() returns all" if more > 0 else ""
        return fragment(self._lines(slice(MOST_EXAMPLES), None, True, OF_TEXT), note)


def _of_another_batch(named: Mapping[str, Any]) -> str | None:
    """Return the name of an attribution of other ids or texts than the first, as files of several batches have; or None."""
    first = next(iter(named.values()))

    def differs(other: Any) -> bool:
        of_other_texts = first.texts is not None and other.texts is not None and first.texts != other.texts
        return of_other_texts or not np.array_equal(other.ids, first.ids)

    return next((name for name, other in named.items() if differs(other)), None)
