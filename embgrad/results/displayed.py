"""Show attributions as plots, pages, LaTeX, in the terminal and in notebooks: of one method, or of several side by side."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from embgrad.common.options import expect_flag
from embgrad.display.html import cell, line_html, page, tag
from embgrad.display.latex import latex
from embgrad.display.lines import Line, TokenMatrix, examples_of, first_of, note_of
from embgrad.display.matrix import matrices_html, matrices_page
from embgrad.display.pairs import lines_between
from embgrad.display.pictures import bars, heat_map, matrix_picture
from embgrad.display.terminal import print_lines
from embgrad.errors import EmbgradError, brief
from embgrad.results.pieces import Unit, lines_of
from embgrad.results.token_matrix import matrix_of, pair_matrix_of

__all__ = ["Displayed", "DisplayedPairs", "DisplayedTokens"]

#: The units shown by default, in order of preference: as text and as plots, those of output tokens, as text and as
#: matrices, and those of pairs of texts.
OF_TEXT: Final = ("spans", "words", "tokens")
OF_PLOTS: Final = ("words", "tokens")
OF_OUTPUTS: Final = ("spans", "tokens")
OF_MATRICES: Final = ("tokens",)
OF_PAIRS: Final = ("words", "tokens")

#: The most examples with output tokens in a notebook's cell.
MOST_MATRICES: Final = 3


class Displayed(ABC):
    """A base class of results that can be displayed."""

    @abstractmethod
    def _by_name(self) -> Mapping[str, Any]:
        """Return the attributions by name; one by itself has the empty name."""

    def _lines(self, examples: Any, by: Unit | None, special: bool, fallback: tuple[str, ...]) -> list[list[Line]]:
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

    def plot(self, examples: Any = None, *, by: Unit | None = None, special: bool = True, ax: Any = None) -> Any:
        """Draw the scores with Matplotlib: bars for one text by one method, else a heat map with a row for each.

        In a heat map of several texts all colours are on one scale; of several methods each row has its own, since their scores
        are of different sizes. Blue is below zero, orange above; scores without a sign are purple. Special tokens do not count
        for the scale.

        Args:
            examples: the index of an example, or a list or slice of indices; None for all, for several methods the first.
            by: "tokens", "words", "spans", "sentences" or "segments", or parts by name, see `Attribution.segments`; None for
                words, or tokens where words are not known.
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

    def to_html(self, examples: Any = None, *, by: Unit | None = None, special: bool = True) -> str:
        """Return a page of HTML with the texts coloured by their scores, which a pointer on them shows in numbers.

        The page needs nothing else, has no scripts, and escapes the texts; write it to a file in UTF-8. Each text has its own
        scale for each method.

        Args:
            examples: the index of an example, or a list or slice of indices; None for all.
            by: as in `plot`; None for spans, or words where the texts or the tokens' offsets in them are not known, or tokens.
            special: whether special tokens are shown.

        Raises:
            EmbgradError: there is no such example or unit; or the tokens, or for spans the texts, are not known.
        """
        lines = self._lines(examples, by, special, OF_TEXT)
        title = " · ".join(dict.fromkeys(line.label or line.summary for line in lines[0]))
        return page(title, [line_html(line, len(lines) > 1) for example in lines for line in example])

    def to_latex(self, examples: Any = None, *, by: Unit | None = None, special: bool = True) -> str:
        """Return LaTeX of the texts, a paragraph for each text and method, for a document with `\\usepackage{xcolor}`.

        Characters with a meaning in LaTeX are escaped. Others are left to the document's fonts: letters beyond Latin need XeLaTeX
        or LuaLaTeX and a font that has them. The arguments and errors are those of `to_html`.
        """
        return latex(self._lines(examples, by, special, OF_TEXT))

    def show(self, examples: Any = None, *, by: Unit | None = None, special: bool = True) -> None:
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
        first = next(iter(named.values()))
        shown, note = first_of(len(named) * first.real.sum(1), "to_html() returns all")
        lines = self._lines(slice(shown), None, True, OF_TEXT)
        return cell(
            [line_html(line, len(lines) > 1) for example in lines for line in example], notes=[note] * bool(note)
        )


def _of_another_batch(named: Mapping[str, Any]) -> str | None:
    """Return the name of an attribution of other ids or texts than the first, as files of several batches have; or None."""
    first = next(iter(named.values()))

    def differs(other: Any) -> bool:
        of_other_texts = first.texts is not None and other.texts is not None and first.texts != other.texts
        return of_other_texts or not np.array_equal(other.ids, first.ids)

    return next((name for name, other in named.items() if differs(other)), None)


class DisplayedTokens:
    """A base class of the attributions of output tokens."""

    outputs: Any

    def matrix(self, example: int = 0, *, by: Unit | None = None, special: bool = True) -> TokenMatrix:
        """Return the contributions of one example as a matrix, whose rows are outputs and whose columns are inputs.

        In an encoder-decoder the encoder's inputs come first, then the decoder's. Padding is left out.

        Args:
            example: the index of the example.
            by: the unit of rows and columns: "tokens", "words", "spans", "sentences" or "segments", or parts of the text by name,
                see `Attribution.segments`; None for tokens. In an encoder-decoder the decoder's text is not known: its units are
                words where `by` is "words", else tokens. If an output is a span of several tokens, the outputs stay as they are.
            special: whether special tokens are among the inputs.

        Raises:
            EmbgradError: there is no such example or unit, the example has no outputs, or the tokens, or for spans the texts, are
                not known.
            BatchError: `special` is neither True nor False.
        """
        return self._matrix(example, by, special, OF_MATRICES)

    def plot(self, example: int = 0, *, by: Unit | None = None, special: bool = True, ax: Any = None) -> Any:
        """Draw one example with Matplotlib: a heat map with a row for each output and a column for each input.

        All cells are on one scale, for which special tokens do not count. Blue is below zero, orange above; scores without a sign
        are purple. Cells of inputs that do not stand before the output are grey. Where there are too many rows or columns for a
        label at each, every second or third has one, and so on.

        Args:
            example: the index of the example.
            by: see `matrix`.
            special: whether special tokens are among the inputs.
            ax: the axes to draw on; None makes a new figure with `matplotlib.pyplot.subplots`. It is not shown: end with
                `plt.show()` outside of notebooks.

        Returns:
            The `matplotlib.axes.Axes`.

        Raises:
            EmbgradError: Matplotlib is not installed (`pip install 'embgrad[plot]'`), or as in `matrix`.
        """
        return matrix_picture(self.matrix(example, by=by, special=special), ax)

    def to_html(self, examples: Any = None, *, by: Unit | None = None, special: bool = True) -> str:
        """Return a page of HTML: the output tokens to step through, the inputs coloured for the chosen one, and the matrix.

        A click on an output, or an arrow key, chooses it. In the text each output has its own scale; the matrix has one for all
        of its cells, and a pointer on a cell shows its score and both tokens. The page needs nothing else, has no scripts, and
        escapes the texts; write it to a file in UTF-8. Matrices of more than 50,000 cells are left out.

        Args:
            examples: the index of an example, or a list or slice of indices; None for all that have outputs.
            by: see `matrix`; None for spans, or tokens where the texts or the tokens' offsets in them are not known.
            special: whether special tokens are among the inputs.

        Raises:
            EmbgradError: as in `matrix`.
        """
        return matrices_page(self._matrices(examples, by, special, OF_OUTPUTS))

    def to_latex(self, example: int = 0, *, by: Unit | None = None, special: bool = True) -> str:
        """Return LaTeX of one example, a paragraph for each output, with the inputs that can contribute to it in their colours.

        It is for a document with `\\usepackage{xcolor}`; see `Attribution.to_latex`. Each output has its own scale. The arguments
        and errors are those of `to_html`.
        """
        return latex([self._matrix(example, by, special, OF_OUTPUTS).lines()])

    def show(self, examples: Any = None, *, by: Unit | None = None, special: bool = True) -> None:
        """Print a text for each output in the terminal: the inputs that can contribute to it, coloured by their scores.

        Without colours the scores are digits, 9 for the output's largest; see `Attribution.show`. The arguments and errors are
        those of `to_html`.
        """
        print_lines([matrix.lines() for matrix in self._matrices(examples, by, special, OF_OUTPUTS)])

    def _repr_html_(self) -> str:
        """Return the HTML that notebooks show: the first examples."""
        having = self._having_outputs()
        note = note_of(MOST_MATRICES, len(having), "to_html() returns all")
        matrices = self._matrices(having[:MOST_MATRICES], None, True, OF_OUTPUTS)
        # The names of the buttons in two cells of a notebook must differ.
        return matrices_html(matrices, f"embgrad-{secrets.token_hex(4)}", note)

    def _matrix(self, example: Any, by: Unit | None, special: bool, fallback: tuple[str, ...]) -> TokenMatrix:
        expect_flag(special, "special")
        return matrix_of(self, example, by, special, fallback)

    def _matrices(self, examples: Any, by: Unit | None, special: bool, fallback: tuple[str, ...]) -> list[TokenMatrix]:
        indices = examples_of(self._having_outputs() if examples is None else examples, len(self.outputs))
        return [self._matrix(index, by, special, fallback) for index in indices]

    def _having_outputs(self) -> list[int]:
        return [index for index, outputs in enumerate(self.outputs) if (outputs >= 0).any()]


class DisplayedPairs:
    """A base class of the attributions of pairs of texts."""

    scores: np.ndarray

    def matrix(self, pair: int = 0, *, by: Unit | None = None, special: bool = True) -> TokenMatrix:
        """Return the contributions of one pair as a matrix, whose rows are of the first text and whose columns are of the second.

        Padding is left out. A score of several tokens is the sum of their scores over both axes.

        Args:
            pair: the index of the pair.
            by: the unit of rows and columns, as in `Attribution.plot`; None for words, or tokens where words are not known.
            special: whether special tokens are among them.

        Raises:
            EmbgradError: there is no such pair or unit; or the tokens, or for spans the texts, are not known.
            BatchError: `special` is neither True nor False.
        """
        expect_flag(special, "special")
        return pair_matrix_of(self, pair, by, special, OF_PAIRS)

    def plot(self, pair: int = 0, *, by: Unit | None = None, special: bool = True, ax: Any = None) -> Any:
        """Draw one pair with Matplotlib: a heat map with a row for each token of the first text, a column for each of the second.

        All cells are on one scale, for which special tokens do not count. Blue is below zero, orange above.

        Args:
            pair: the index of the pair.
            by: see `matrix`; so is `special`.
            ax: the axes to draw on; None makes a new figure with `matplotlib.pyplot.subplots`. It is not shown: end with
                `plt.show()` outside of notebooks.

        Returns:
            The `matplotlib.axes.Axes`.

        Raises:
            EmbgradError: Matplotlib is not installed (`pip install 'embgrad[plot]'`), or as in `matrix`.
        """
        return matrix_picture(self.matrix(pair, by=by, special=special), ax)

    def to_html(self, pairs: Any = None, *, by: Unit | None = None, special: bool = True) -> str:
        """Return a page of HTML: for each pair lines between both texts as strong as the scores, the texts, and the matrix.

        A click on a token of the first text, or an arrow key, colours the second text by its scores with that token. The page
        needs nothing else, has no scripts, and escapes the texts; write it to a file in UTF-8.

        Args:
            pairs: the index of a pair, or a list or slice of indices; None for all.
            by: see `matrix`; so is `special`.

        Raises:
            EmbgradError: as in `matrix`.
        """
        matrices = self._matrices(pairs, by, special)
        title = " · ".join(dict.fromkeys(matrix.summary for matrix in matrices))
        return page(
            title, [(lines_between(each), matrices_html([each], f"embgrad-{each.example}")) for each in matrices]
        )

    def to_latex(self, pair: int = 0, *, by: Unit | None = None, special: bool = True) -> str:
        """Return LaTeX of one pair, a paragraph for each token of the first text with the second text in its colours.

        It is for a document with `\\usepackage{xcolor}`; see `Attribution.to_latex`. The arguments and errors are those of
        `matrix`.
        """
        return latex([self.matrix(pair, by=by, special=special).lines()])

    def show(self, pairs: Any = None, *, by: Unit | None = None, special: bool = True) -> None:
        """Print for each token of the first text the second text in the terminal, coloured by its scores with that token.

        Without colours the scores are digits, 9 for the token's largest; see `Attribution.show`. The arguments and errors are
        those of `to_html`.
        """
        print_lines([matrix.lines() for matrix in self._matrices(pairs, by, special)])

    def _repr_html_(self) -> str:
        """Return the HTML that notebooks show: lines between the texts of the first pairs."""
        note = note_of(MOST_MATRICES, len(self.scores), "to_html() returns all")
        shown = self._matrices(slice(MOST_MATRICES), None, True)
        pictures = [(matrix.summary, lines_between(matrix)) for matrix in shown]
        return cell([[tag("div", summary), picture] for summary, picture in pictures], notes=[note] * bool(note))

    def _matrices(self, pairs: Any, by: Unit | None, special: bool) -> list[TokenMatrix]:
        return [self.matrix(index, by=by, special=special) for index in examples_of(pairs, len(self.scores))]
