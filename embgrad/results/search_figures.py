"""The robustness figures of a search on a dataset: how many examples met the stopping rule, at what cost, by how many changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from embgrad.common.text import visible
from embgrad.display.html import FAINT, Html, cell, tag

__all__ = ["Amount", "SearchFigures", "figures_of"]


class Amount(NamedTuple):
    """The mean and the median of a number over examples; NaN where there is no such example.

    Attributes:
        mean: the mean of the examples that were searched, which are those that did not meet the stopping rule before.
        median: their median.
        mean_of_successes: the mean of those that met the rule at the end.
        median_of_successes: their median.
    """

    mean: float
    median: float
    mean_of_successes: float
    median_of_successes: float


@dataclass(frozen=True)
class SearchFigures:
    """The robustness figures of a search: of n examples m met the stopping rule before, and k of the others at the end.

    The rates are named as in TextAttack (Morris et al., "TextAttack: a framework for adversarial attacks, data augmentation, and
    adversarial training in NLP", 2020), whose attacked model is a classifier and whose rule is that it is wrong. They mean the
    same with any rule, where "accuracy" is the share of the examples that do not meet it. They depend on the method and on its
    number of steps: a search that finds nothing does not show that there is nothing.

    Attributes:
        title: the method, the goal, the objective and the stopping rule, in words.
        examples: n, the number of examples.
        met_before: m, how many met the rule before the search, as a classifier's errors do; 0 where there is no rule.
        successes: k, how many of the others met it at the end; None where there is no rule.
        attack_success_rate: k / (n − m); None where there is no rule, or no other example.
        clean_accuracy: (n − m) / n; None where there is no rule.
        accuracy_under_attack: the share of all examples that do not meet the rule at the end, (n − m − k) / n where those that
            met it before still do; None where there is no rule.
        evaluations: forward passes of an example; with `gradients` the number of queries.
        gradients: passes with a gradient of an example, which are not among the evaluations.
        changed: how many tokens of an example were substituted, inserted or deleted.
        changed_share: `changed` divided by the number of an example's tokens before, special tokens included.
        seconds: the time of the whole search.
    """

    title: str
    examples: int
    met_before: int
    successes: int | None
    attack_success_rate: float | None
    clean_accuracy: float | None
    accuracy_under_attack: float | None
    evaluations: Amount
    gradients: Amount
    changed: Amount
    changed_share: Amount
    seconds: float

    def __str__(self) -> str:
        return f"{visible(self.title)}\n{self.table()}"

    def table(self) -> str:
        """Return the figures as aligned lines of text, without the title."""
        rows, amounts = list(self._rates()), list(self._amounts())
        wide = max(len(row[0]) for row in (*rows, *amounts))
        widths = [max(map(len, column)) for column in zip(*(row[1:] for row in amounts), strict=True)]
        lines = [f"{name:{wide}}  {value}" for name, value in rows]
        lines += ["  ".join([f"{name:{wide}}", *map(str.rjust, values, widths)]) for name, *values in amounts]
        return "\n".join(line.rstrip() for line in lines)

    def _repr_html_(self) -> str:
        """Return the table that notebooks show."""
        return cell(self._table_html(), heading=visible(self.title))

    def to_html(self) -> str:
        """Return the table as HTML without the title."""
        return self._table_html()

    def _table_html(self) -> Html:
        head, *rest = self._amounts()
        rates = [_row(name, [value], "left", colspan=4) for name, value in self._rates()]
        amounts = [_row(head[0], head[1:]), *(_row(name, values) for name, *values in rest)]
        table = tag("table", rates, amounts, style="font-size:.8em;border-collapse:collapse")
        return tag("div", table, style="overflow-x:auto")

    def to_dict(self) -> dict[str, Any]:
        """Return the figures by name; those of an `Amount` by its names."""
        amounts = {name: getattr(self, name) for name in ("evaluations", "gradients", "changed", "changed_share")}
        return {**asdict(self), **{name: amount._asdict() for name, amount in amounts.items()}}

    def _rates(self) -> Iterator[tuple[str, str]]:
        yield "examples", str(self.examples)
        if self.successes is not None:
            searched = self.examples - self.met_before
            yield "met the rule before", str(self.met_before)
            yield "attack success rate", f"{_share(self.attack_success_rate)} ({self.successes} of {searched})"
            yield "accuracy under attack", f"{_share(self.accuracy_under_attack)}, before {_share(self.clean_accuracy)}"
        yield "seconds", f"{self.seconds:.4g}"

    def _amounts(self) -> Iterator[tuple[str, ...]]:
        has_rule = self.successes is not None
        of = ("mean", "median", *(("mean of successes", "median of successes") if has_rule else ()))
        yield "an example's", *of
        for name in ("evaluations", "gradients", "changed", "changed_share"):
            is_share = name == "changed_share"
            values = (_share(value) if is_share else _number(value) for value in getattr(self, name)[: len(of)])
            yield {"changed": "changed tokens", "changed_share": "share of changed tokens"}.get(name, name), *values


def figures_of(search: Any, title: str) -> SearchFigures:
    """Return the figures of a `Search`."""
    examples = len(search.before)
    met = np.zeros(examples, bool) if search.success_before is None else search.success_before
    successes = None if search.success is None else search.success & ~met
    count, searched = None if successes is None else int(successes.sum()), int((~met).sum())
    lengths = np.maximum(search.before.real.sum(1), 1)

    def amount(of_each: np.ndarray) -> Amount:
        of_successes = of_each[:0] if successes is None else of_each[successes]
        return Amount(*_middle(of_each[~met]), *_middle(of_successes))

    return SearchFigures(
        title=title,
        examples=examples,
        met_before=int(met.sum()),
        successes=count,
        attack_success_rate=None if count is None or not searched else count / searched,
        clean_accuracy=None if count is None else searched / examples,
        accuracy_under_attack=None if search.success is None else float((~search.success).mean()),
        evaluations=amount(search.history.evaluations[-1]),
        gradients=amount(search.history.gradients[-1]),
        changed=amount(search.changed),
        changed_share=amount(search.changed / lengths),
        seconds=float(search.history.seconds[-1]),
    )


def _row(name: str, values: Sequence[str], align: str = "right", **attributes: Any) -> Html:
    """Return a row of the table."""
    style = f"text-align:{align};white-space:nowrap;padding:.1em .8em .1em 0"
    head = tag("th", name, scope="row", style=f"text-align:left;font-weight:normal;{FAINT};padding:.1em 1.2em .1em 0")
    return tag("tr", head, [tag("td", value, style=style, **attributes) for value in values])


def _middle(values: np.ndarray) -> tuple[float, float]:
    return (float(np.mean(values)), float(np.median(values))) if len(values) else (float("nan"), float("nan"))


def _share(value: float | None) -> str:
    return "–" if value is None or np.isnan(value) else f"{100 * value:.1f} %"


def _number(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.1f}" if value >= 10 or value % 1 else f"{value:.0f}"
