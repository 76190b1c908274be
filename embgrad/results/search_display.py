"""Display of searches: a table, the terminal, a page, notebooks and a plot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from embgrad.common.text import visible
from embgrad.results.pictures import course
from embgrad.results.pieces import examples_of
from embgrad.results.search_changes import names_of
from embgrad.results.search_html import document, fragment
from embgrad.results.search_lines import SearchLine, lines_of, task_of
from embgrad.results.search_terminal import print_search

__all__ = ["DisplayedSearch"]

#: The most examples in a notebook's cell.
MOST_EXAMPLES: Final = 10


class DisplayedSearch:
    """A base class of searches that can be displayed."""

    before: Any
    history: Any
    provenance: Mapping[str, Any]

    @property
    def _task(self) -> str:
        return task_of(self.provenance, whole=False)

    @property
    def _title(self) -> str:
        search: Any = self
        title = task_of(self.provenance, whole=True)
        if search.trigger is not None:
            names = names_of(search.batch)
            title += f"; trigger: {' '.join(names.get(number, str(number)) for number in search.trigger.tolist())}"
        return visible(title)

    def _lines(self, examples: Any) -> list[SearchLine]:
        return lines_of(self, examples_of(examples, len(self.before)))

    def table(self, examples: Any = None) -> str:
        """Return a row for each example: L before and after, changed tokens, evaluations, gradients, and whether the rule is met.

        Args:
            examples: the index of an example, or a list or slice of indices; None for all.

        Raises:
            EmbgradError: there is no such example.
        """
        search: Any = self
        rows = [["example", "L before", "L", "changed", "evaluations", "gradients", "met"]]
        for line in self._lines(examples):
            example, history = line.example, search.history
            numbers = (search.changed[example], history.evaluations[-1, example], history.gradients[-1, example])
            values = (search.objective_before[example], search.objective[example])
            outcome = {"": "–", "met": "yes", "not met": "no", "met before": "before"}[line.outcome]
            rows.append([str(example), *(f"{value:.4g}" for value in values), *map(str, numbers), outcome])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.rjust, row, widths)) for row in rows)

    def show(self, examples: Any = None) -> None:
        """Print the texts before and after in the terminal: changed tokens in colours, or where there are none in brackets.

        A token that was replaced or deleted is blue, or in `[-…-]`; one that was put in is orange, or in `{+…+}`. Colours need
        the package Rich and a terminal of 256 colours, and respect the variable `NO_COLOR`. The arguments and errors are those of
        `table`.
        """
        print_search(self._title, self._lines(examples))

    def to_html(self, examples: Any = None) -> str:
        """Return a page of HTML: the texts before and after, L by step as a line, and the figures of `figures`.

        A token that was replaced or deleted is blue, one that was put in orange; a pointer on it shows both. The dashed line is
        the L at which the search of an example stops. The page needs nothing else, has no scripts, and escapes the texts;
        write it to a file in UTF-8. The arguments and errors are those of `table`.
        """
        search: Any = self
        return document(self._title, self._lines(examples), search.figures().to_html())

    def _repr_html_(self) -> str:
        """Return the HTML that notebooks show: the first examples."""
        count = len(self.before)
        more = count - MOST_EXAMPLES
        note = f"the first {MOST_EXAMPLES} of {count} examples; to_html() returns all" if more > 0 else ""
        return fragment(self._title, self._lines(slice(MOST_EXAMPLES)), note=note)

    def plot(self, examples: Any = None, *, ax: Any = None) -> Any:
        """Draw L of the best text by step with Matplotlib, a line for each example.

        Args:
            examples: the index of an example, or a list or slice of indices; None for all.
            ax: the axes to draw on; None makes a new figure with `matplotlib.pyplot.subplots`. It is not shown: end with
                `plt.show()` outside of notebooks.

        Returns:
            The `matplotlib.axes.Axes`.

        Raises:
            EmbgradError: Matplotlib is not installed (`pip install 'embgrad[plot]'`), or there is no such example.
        """
        return course(self._lines(examples), ax)
