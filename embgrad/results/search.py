"""The result of `embgrad.search`: the texts that were found, how they were found, and at what cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from embgrad.common.text import visible
from embgrad.inputs.batch import TokenBatch
from embgrad.results.file_format import Saved
from embgrad.results.history import History
from embgrad.results.search_changes import Change, changes_of
from embgrad.results.search_display import DisplayedSearch, count_of
from embgrad.results.search_figures import SearchFigures, figures_of
from embgrad.results.table_rows import change_columns, example_columns
from embgrad.results.tabular import TabularByChoice

__all__ = ["History", "Search"]


@dataclass(frozen=True, eq=False)
class Search(DisplayedSearch, TabularByChoice, Saved):
    """The texts that a search found.

    Further inputs of the batch, such as `position_ids`, are not saved: both batches are read back without them.

    Attributes:
        before: the batch with which the search began.
        batch: the best texts that were found, as a batch that the model takes.
        objective_before: L of each example of `before`, float64, shape (example,).
        objective: L of each example of `batch`, likewise.
        success: whether each example met the stopping rule, bool, shape (example,); None where there is none.
        history: the course of the search.
        texts_before: the text of each example of `before`, without special tokens, decoded by the tokenizer; None without one.
        texts: the text of each example of `batch`, likewise.
        trigger: the ids that every text of the batch shares, int64, shape (length,), by `UniversalTrigger`; else None.
        provenance: the versions, the model, the objective, the method with its arguments, the goal, and more, as
            JSON-compatible values.
    """

    _TABLES: ClassVar[Mapping[str, Any]] = {"changes": change_columns, "examples": example_columns}

    before: TokenBatch
    batch: TokenBatch
    objective_before: np.ndarray
    objective: np.ndarray
    success: np.ndarray | None
    history: History
    texts_before: tuple[str, ...] | None
    texts: tuple[str, ...] | None
    trigger: np.ndarray | None
    provenance: Mapping[str, Any]

    def __repr__(self) -> str:
        source = self.provenance
        met = "" if self.success is None else f", {int(self.success.sum())} of {len(self.before)} met"
        return visible(
            f"Search({' × '.join(map(str, self.before.shape))}, {self._task}{met}, mean L "
            f"{np.mean(self.objective_before):.4g} → {np.mean(self.objective):.4g}, "
            f"{count_of(int(self.changed.sum()), 'token')} changed: {source.get('model')} ({source.get('backend')}))"
        )

    @cached_property
    def success_before(self) -> np.ndarray | None:
        """The examples that met the stopping rule before the search, bool, shape (example,); None where there is no rule."""
        goal, until = (self.provenance.get(name) for name in ("goal", "until"))
        if until is None:
            return None
        sign = -1 if goal == "minimize" else 1
        return np.asarray(sign * self.objective_before >= sign * np.asarray(until, np.float64))

    def changes(self) -> list[list[Change]]:
        """Return for each example the tokens that were substituted, inserted and deleted, in the order of the text.

        Texts of one length are compared position by position, unless the method inserts and deletes tokens; others are aligned
        so that they differ in as few tokens as possible.
        """
        method = self.provenance.get("method") or {}
        return changes_of(self.before, self.batch, bool(method.get("insert") or method.get("delete")))

    @cached_property
    def changed(self) -> np.ndarray:
        """The number of tokens of each example that were substituted, inserted or deleted, int64, shape (example,)."""
        return np.array([len(own) for own in self.changes()], np.int64)

    def figures(self) -> SearchFigures:
        """Return the robustness figures on the examples: attack success rate, accuracy under attack, queries, changed tokens."""
        return figures_of(self, self._title)
