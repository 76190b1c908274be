"""The result of `faithfulness`: metrics of several attribution methods, for each example, with a table and a plot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final

import numpy as np

from embgrad.common.text import visible
from embgrad.errors import EmbgradError, did_you_mean
from embgrad.results.table_rows import metric_columns, share_columns
from embgrad.results.tabular import TabularByChoice

__all__ = ["Faithfulness"]

#: The metrics of the table: the field, the heading, and whether a faithful attribution has a high one.
METRICS: Final = (
    ("aopc_comprehensiveness", "comprehensiveness", True),
    ("aopc_sufficiency", "sufficiency", False),
    ("loo_correlation", "leave-one-out", True),
    ("deletion_area", "deletion", False),
    ("insertion_area", "insertion", True),
)

#: The number of shares at which the curves of a plot are averaged over examples.
POINTS: Final = 101


@dataclass(frozen=True, eq=False)
class Faithfulness(TabularByChoice):
    """The faithfulness of attributions by several methods. L is the objective, n an example's number of removable tokens.

    Arrays are float64; their first axes are the methods, in the order of `methods`, and the examples.

    Attributes:
        methods: the names of the methods.
        shares: the shares of tokens, shape (share,).
        objective: L of each example, shape (example,); for deleted tokens that of the text without padding.
        tokens: n of each example, int64, shape (example,); 0 where a text has only special tokens. Nothing can be removed from
            it: comprehensiveness and sufficiency are 0, the areas are L.
        counts: how many tokens are removed, or kept, at each share, int64, shape (method, example, share).
        comprehensiveness: L minus L without the top tokens, shape (method, example, share). High is faithful.
        sufficiency: L minus L of the top tokens alone, likewise. Low is faithful.
        aopc_comprehensiveness: the mean over the shares, shape (method, example).
        aopc_sufficiency: likewise.
        leave_one_out: L minus L without one token, shape (example, position), 0 where no token can be removed; None where it
            was not requested.
        loo_correlation: Kendall's tau-b of the scores and `leave_one_out`, shape (method, example), from -1 to 1; high is
            faithful. NaN where one of them is the same for all tokens, or there are fewer than two. None where it was not
            requested.
        deletion: L with the top k tokens removed, k from 0 to n, shape (method, example, k); NaN beyond an example's n. None
            where curves were not requested.
        insertion: L with the top k tokens alone, likewise.
        deletion_area: the area under the curve over k/n, by the trapezoidal rule, shape (method, example). Low is faithful.
        insertion_area: likewise. High is faithful.
        provenance: the backend, the model, the objective and the options, as JSON-compatible values; `texts` is the number of
            shortened texts that were run.
    """

    _TABLES: ClassVar[Mapping[str, Any]] = {"examples": metric_columns, "shares": share_columns}

    methods: tuple[str, ...]
    shares: np.ndarray
    objective: np.ndarray
    tokens: np.ndarray
    counts: np.ndarray
    comprehensiveness: np.ndarray
    sufficiency: np.ndarray
    aopc_comprehensiveness: np.ndarray
    aopc_sufficiency: np.ndarray
    leave_one_out: np.ndarray | None
    loo_correlation: np.ndarray | None
    deletion: np.ndarray | None
    insertion: np.ndarray | None
    deletion_area: np.ndarray | None
    insertion_area: np.ndarray | None
    provenance: Mapping[str, Any]

    @property
    def means(self) -> dict[str, dict[str, float]]:
        """The means over the examples by method and metric; those where a metric is NaN do not count."""
        return {method: self._means(number) for number, method in enumerate(self.methods)}

    def _means(self, method: int) -> dict[str, float]:
        means = {}
        for name, _, _ in METRICS:
            values = getattr(self, name)
            if values is not None:
                known = values[method][~np.isnan(values[method])]
                means[name] = float(known.mean()) if known.size else float("nan")
        return means

    def __getitem__(self, method: str) -> dict[str, np.ndarray]:
        """Return the metrics of one method by name, each as in the class without its first axis."""
        if method not in self.methods:
            raise KeyError(f"no method {method!r}.{did_you_mean(str(method), self.methods)}")
        number = self.methods.index(method)
        names = (
            "counts",
            "comprehensiveness",
            "sufficiency",
            *(name for name, _, _ in METRICS),
            "deletion",
            "insertion",
        )
        return {name: getattr(self, name)[number] for name in names if getattr(self, name) is not None}

    def table(self) -> str:
        """Return the means over the examples as an aligned table, a method a line; an arrow shows which way is faithful."""
        known = [metric for metric in METRICS if getattr(self, metric[0]) is not None]
        rows = [["", *(f"{heading} {'↑' if is_high else '↓'}" for _, heading, is_high in known)]]
        for method, means in self.means.items():
            figures = [means[name] for name, _, _ in known]
            rows.append([visible(method), *("–" if np.isnan(value) else f"{value:.4g}" for value in figures)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows]
        return "\n".join("  ".join(line).rstrip() for line in lines)

    def __repr__(self) -> str:
        source = self.provenance
        title = (
            f"Faithfulness of {len(self.methods)} method(s) on {len(self.objective)} example(s), "
            f"remove={source.get('remove')!r}, L is {source.get('objective', {}).get('class')}: {source.get('model')} "
            f"({source.get('backend')})"
        )
        return f"{visible(title)}\n{self.table()}"

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-compatible values: the fields by name, with None for NaN, and the means."""
        values = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        return {**values, "means": {method: _plain(means) for method, means in self.means.items()}}

    def plot(self) -> Any:
        """Return a matplotlib figure: the means of comprehensiveness and sufficiency as bars, and the mean curves where known.

        The curves are averaged over the examples at equal shares of tokens, between which they are linear. Save the figure with
        `figure.savefig("faithfulness.png")`.

        Raises:
            EmbgradError: matplotlib is not installed.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise EmbgradError(
                f"a plot needs the package 'matplotlib', which cannot be imported ({error}): pip install 'embgrad[plot]'"
            ) from error
        panels = 1 if self.deletion is None else 3
        figure = Figure(figsize=(4.2 * panels + 1.6, 3.6), layout="constrained")
        axes = figure.subplots(1, panels, squeeze=False)[0]
        self._draw_bars(axes[0])
        figure.legend(loc="outside right upper", fontsize="small")
        for panel, name in zip(axes[1:], ("deletion", "insertion"), strict=True) if panels > 1 else ():
            self._draw_curves(panel, name)
        return figure

    def _draw_bars(self, axes: Any) -> None:
        places = np.arange(2)
        width = 0.8 / len(self.methods)
        for number, (method, means) in enumerate(self.means.items()):
            heights = [means["aopc_comprehensiveness"], means["aopc_sufficiency"]]
            axes.bar(places - 0.4 + (number + 0.5) * width, heights, width, label=_label(method), color=f"C{number}")
        axes.set_xticks(places, ["comprehensiveness\n(high is faithful)", "sufficiency\n(low is faithful)"])
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_title("change of L, mean over the shares")

    def _draw_curves(self, axes: Any, name: str) -> None:
        grid = np.linspace(0, 1, POINTS)
        for number, method in enumerate(self.methods):
            curves = [
                np.interp(grid, np.linspace(0, 1, tokens + 1), curve[: tokens + 1])
                for curve, tokens in zip(getattr(self, name)[number], self.tokens, strict=True)
            ]
            axes.plot(grid, np.mean(curves, 0), label=_label(method), color=f"C{number}")
        is_deletion = name == "deletion"
        axes.set_xlabel(f"share of tokens {'removed' if is_deletion else 'kept'}, top first")
        axes.set_title("deletion: low is faithful" if is_deletion else "insertion: high is faithful")
        axes.set_ylabel("L, mean over the examples")


def _label(method: str) -> str:
    """Return a method's name as a label: matplotlib hides those that begin with an underscore, and reads $ as mathematics."""
    return visible(method).replace("$", r"\$").removeprefix("_")


def _plain(value: Any) -> Any:
    """Return a value as JSON-compatible values, with None for NaN."""
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    return None if isinstance(value, float) and np.isnan(value) else value
