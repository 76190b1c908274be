"""The table's gradient is that of its lookups, added up by ids, and that of a head that is tied to it."""

from __future__ import annotations

import numpy as np
from hypothesis import given

import embgrad
from tests.contract.properties.cases import Case, built, close
from tests.contract.properties.generating import cases
from tests.contract.properties.running import each_framework, property_of


def scattered(ids: np.ndarray, values: np.ndarray, rows: int) -> np.ndarray:
    """The sum of the values that belong to each row, float64."""
    table = np.zeros((rows, values.shape[-1]))
    np.add.at(table, ids, values.astype(np.float64))
    return table


@each_framework
@property_of
@given(case=cases(meets=True) | cases())
def test_it_is_the_lookups_added_up_by_ids(framework: str, case: Case) -> None:
    found = case.gradients(built(framework, case.spec))
    unit = np.finfo(case.spec.dtype).eps  # the sums are float64's, rounded once
    expected = scattered(case.batch.ids, found.values, case.spec.vocab)
    close(found.table().to_dense(), expected, unit * np.abs(expected).max(), "table()")
    for example, table in enumerate(found.per_example()):
        own = scattered(case.batch.ids[example], found.values[example], case.spec.vocab)
        close(table.to_dense(), own, unit * np.abs(own).max(), f"per_example()[{example}]")
        assert table.rows.tolist() == sorted(set(case.batch.ids[example].tolist()))


@each_framework
@property_of
@given(case=cases(heads=("tied", "tied", "linear")))
def test_the_total_is_that_of_the_lookups_and_of_the_head(framework: str, case: Case) -> None:
    answer, model = case.closed_form(), built(framework, case.spec)
    lookup = case.batch.ids.size * answer.allowed["word"]
    found = embgrad.table_gradients(model, case.tokens(), case.goal.given())
    close(found.lookup, answer["table"], lookup, "lookup")
    close(found.head, answer["head"], answer.allowed["head"], "head")
    close(found.total, answer["table"] + answer["head"], lookup + answer.allowed["head"], "total")
    close(found.lookup, case.gradients(model).table().to_dense(), 2 * lookup, "lookup")
    assert found.own is not None
    kept = np.arange(case.spec.vocab) != found.padding  # the framework leaves out the lookups of padding
    close(found.own[kept], found.total[kept], 2 * (lookup + answer.allowed["head"]), "the framework's own")
    assert found.padding in (None, case.spec.padding)
