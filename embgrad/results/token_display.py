"""Display of the attributions of output tokens: a heat map, a page to step through, LaTeX, the terminal and notebooks."""

from __future__ import annotations

import secrets
from typing import Any, Final

from embgrad.common.options import expect_flag
from embgrad.results.latex import latex
from embgrad.results.pieces import examples_of
from embgrad.results.terminal import print_lines
from embgrad.results.token_html import document, fragment
from embgrad.results.token_matrix import TokenMatrix, matrix_of
from embgrad.results.token_picture import matrix_picture

__all__ = ["DisplayedTokens"]

#: The units shown by default, in order of preference: as text, and as a matrix.
OF_TEXT: Final = ("spans", "tokens")
OF_MATRICES: Final = ("tokens",)

#: The most examples in a notebook's cell.
MOST_EXAMPLES: Final = 3


class DisplayedTokens:
    """A base class of the attributions of output tokens."""

    outputs: Any

    def matrix(self, example: int = 0, *, by: str | None = None, special: bool = True) -> TokenMatrix:
        """Return the contributions of one example as a matrix, whose rows are outputs and whose columns are inputs.

        In an encoder-decoder the encoder's inputs come first, then the decoder's. Padding is left out.

        Args:
            example: the index of the example.
            by: the unit of rows and columns: "tokens", "words", "spans" or "sentences"; None for tokens. In an encoder-decoder
                the decoder's text is not known: its units are words where `by` is "words", else tokens.
            special: whether special tokens are among the inputs.

        Raises:
            EmbgradError: there is no such example or unit, the example has no outputs, or the tokens, or for spans the texts, are
                not known.
            BatchError: `special` is neither True nor False.
        """
        return self._matrix(example, by, special, OF_MATRICES)

    def plot(self, example: int = 0, *, by: str | None = None, special: bool = True, ax: Any = None) -> Any:
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

    def to_html(self, examples: Any = None, *, by: str | None = None, special: bool = True) -> str:
        """Return a page of HTML: the output tokens to step through, the inputs coloured for the chosen one, and the matrix.

        A click on an output, or an arrow key, chooses it. In the text each output has its own scale; the matrix has one for all
        of its cells, and a pointer on a cell shows its score and both tokens. The page needs nothing else, has no scripts, and
        escapes the texts; write it to a file in UTF-8. Matrices of more than 50,000 cells are left out.

        Args:
            examples: the index of an example, or a list or slice of indices; None for all that have outputs.
            by: "tokens", "words", "spans" or "sentences", see `matrix`; None for spans, or tokens where the texts or the tokens'
                offsets in them are not known.
            special: whether special tokens are among the inputs.

        Raises:
            EmbgradError: as in `matrix`.
        """
        return document(self._matrices(examples, by, special, OF_TEXT))

    def to_latex(self, example: int = 0, *, by: str | None = None, special: bool = True) -> str:
        """Return LaTeX of one example, a paragraph for each output, with the inputs that can contribute to it in their colours.

        It is for a document with `\\usepackage{xcolor}`; see `Attribution.to_latex`. Each output has its own scale. The arguments
        and errors are those of `to_html`.
        """
        return latex([self._matrix(example, by, special, OF_TEXT).lines()])

    def show(self, examples: Any = None, *, by: str | None = None, special: bool = True) -> None:
        """Print a text for each output in the terminal: the inputs that can contribute to it, coloured by their scores.

        Without colours the scores are digits, 9 for the output's largest; see `Attribution.show`. The arguments and errors are
        those of `to_html`.
        """
        print_lines([matrix.lines() for matrix in self._matrices(examples, by, special, OF_TEXT)])

    def _repr_html_(self) -> str:
        """Return the HTML that notebooks show: the first examples."""
        having = self._having_outputs()
        more = len(having) - MOST_EXAMPLES
        note = f"the first {MOST_EXAMPLES} of {len(having)} examples; to_html() returns all" if more > 0 else ""
        matrices = self._matrices(having[:MOST_EXAMPLES], None, True, OF_TEXT)
        # The names of the buttons in two cells of a notebook must differ.
        return fragment(matrices, f"embgrad-{secrets.token_hex(4)}", note)

    def _matrix(self, example: Any, by: str | None, special: bool, fallback: tuple[str, ...]) -> TokenMatrix:
        expect_flag(special, "special")
        return matrix_of(self, example, by, special, fallback)

    def _matrices(self, examples: Any, by: str | None, special: bool, fallback: tuple[str, ...]) -> list[TokenMatrix]:
        indices = examples_of(self._having_outputs() if examples is None else examples, len(self.outputs))
        return [self._matrix(index, by, special, fallback) for index in indices]

    def _having_outputs(self) -> list[int]:
        return [index for index, outputs in enumerate(self.outputs) if (outputs >= 0).any()]
