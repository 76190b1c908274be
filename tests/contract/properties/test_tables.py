"""The table's gradient is that of its lookups, summed by ids, and that of a head that is tied to it."""

from __future__ import annotations

import numpy as np
from hypothesis import given

import embgrad
from tests.contract.properties.cases import Case, built, close
from tests.contract.properties.generating import cases
from tests.contract.properties.running import each_framework, property_of


def scattered(ids: np.ndarray, values: np.ndarray, rows: int) -> np.ndarray:
    table = np.zeros((rows, values.shape[-1]))
    np.add.at(table, ids, values.astype(np.float64))
    return table


@each_framework
@property_of
@given(case=cases(mixes=True) | cases())
def test_the_table_gradient_sums_the_lookups_by_ids(framework: str, case: Case) -> None:
    result = case.gradients(built(framework, case.spec))
    unit = np.finfo(case.spec.dtype).eps  # the sums are float64's, rounded once
    expected = scattered(case.batch.ids, result.values, case.spec.vocab)
    close(result.table().to_dense(), expected, unit * np.abs(expected).max(), "table()")
    for example, table in enumerate(result.per_example()):
        own = scattered(case.batch.ids[example], result.values[example], case.spec.vocab)
        close(table.to_dense(), own, unit * np.abs(own).max(), f"per_example()[{example}]")
        assert table.rows.tolist() == sorted(set(case.batch.ids[example].tolist()))


@each_framework
@property_of
@given(case=cases(heads=("tied", "tied", "linear")))
def test_the_total_is_that_of_the_lookups_and_of_the_head(framework: str, case: Case) -> None:
    answer = case.closed_form()
    lookup, head = case.batch.ids.size * answer.allowed("word"), answer.allowed("head")
    actual = embgrad.tables.table_gradients(built(framework, case.spec), case.tokens(), case.goal.objective())
    close(actual.lookup, answer["table"], lookup, "lookup")
    close(actual.head, answer["head"], head, "head")
    close(actual.total, answer["table"] + answer["head"], lookup + head, "total")
    assert actual.own is not None
    counted = np.arange(case.spec.vocab) != actual.padding  # the framework drops the lookups of padding
    close(actual.own[counted], actual.total[counted], 2 * (lookup + head), "the framework's own")
    assert actual.padding in (None, case.spec.padding)
