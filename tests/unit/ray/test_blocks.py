"""The answers of an actor for a block of rows, in this process."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import embgrad
import embgrad.ray
from embgrad.errors import (
    BackendError,
    BatchError,
    EmbgradError,
    ObjectiveError,
    PointError,
    UnsupportedError,
)
from embgrad.ray.columns import Wanted
from embgrad.ray.settings import settings
from embgrad.ray.tally import Tally, Total
from embgrad.ray.worker import GradientWorker, TableWorker
from embgrad.testing.reference import ReferenceModel, lookup
from tests.unit.ray import models
from tests.unit.ray.models import labelled

Items = Callable[..., list[dict[str, Any]]]


def worked(
    rows: list[dict[str, Any]],
    build: Callable[[], Any] = models.reference,
    objective: Any = labelled,
    output: str = "saliency",
    **options: Any,
) -> list[dict[str, Any]]:
    length = options.pop("length", None)
    wanted = Wanted(output, options.pop("kind", "norm"), length, options.pop("prefix", ""))
    asked, _ = settings(build, objective, {"batch_size": 4, **options})
    return GradientWorker(asked, wanted)(pa.Table.from_pylist(rows)).to_pylist()


def blocks(table: pa.Table, build: Any = models.reference, objective: Any = labelled, prefix: str = "") -> pa.Table:
    asked, _ = settings(build, objective, {"ids": "ids_", "batch_size": 2})
    return GradientWorker(asked, Wanted("saliency", "norm", None, prefix))(table)


def alone(
    row: dict[str, Any], build: Callable[[], Any] = models.reference, **options: Any
) -> embgrad.results.EmbeddingGradients:
    actual = embgrad.gradients(
        build(), embgrad.TokenBatch([row["ids_"]]), embgrad.CrossEntropy([row["label"]]), **options
    )
    assert isinstance(actual, embgrad.results.EmbeddingGradients)
    return actual


def expect_alone(rows: list[dict[str, Any]], build: Callable[[], Any] = models.reference) -> None:
    for row in rows:
        expected = alone(row, build)
        np.testing.assert_allclose(row["saliency"], expected.saliency()[0], rtol=1e-12)
        np.testing.assert_allclose(row["objective"], expected.objective[0], rtol=1e-12)


def test_rows_keep_their_order_and_columns(items: Items) -> None:
    rows = items(11)
    actual = worked(rows, ids="ids_")
    assert [{name: row[name] for name in rows[0]} for row in actual] == rows
    assert all(row["ids"] == row["ids_"] for row in actual)
    expect_alone(actual)


def test_tables_and_values_are_those_of_each_row(items: Items) -> None:
    rows = items(9)
    for row in worked(rows, ids="ids_", output="tables"):
        expected = alone(row).table()
        assert row["rows"] == expected.rows.tolist()
        assert row["vocab"] == models.VOCAB
        np.testing.assert_allclose(row["values"], expected.values, rtol=1e-12)
    for row in worked(rows, ids="ids_", output="values", length=10):
        tensor = np.array(row["values"]).reshape(10, models.DIM)
        own = len(row["ids_"])
        np.testing.assert_allclose(tensor[:own], alone(row).values[0], rtol=1e-12)
        assert (tensor[own:] == 0).all()


def test_the_dtype_is_that_of_the_model(items: Items) -> None:
    rows = pa.Table.from_pylist(items(3))
    for build, dtype in ((models.reference, "double"), (models.reference_float32, "float")):
        assert str(blocks(rows, build).schema.field("saliency").type.value_type) == dtype


def test_texts_are_returned_with_their_tokens(items: Items) -> None:
    actual = worked(items(6), lambda: (models.reference(), models.tokenizer()))
    for row in actual:
        assert row["ids"] == row["ids_"]
        assert row["tokens"] == ["[CLS]", *row["text"].split(), "[SEP]"]
    expect_alone(actual)


def test_tokens_that_are_cut_off_are_counted(items: Items) -> None:
    rows = items(6, shortest=4)
    for row in worked(rows, lambda: (models.reference(), models.tokenizer()), max_length=5):
        assert row["truncated"] == max(len(row["ids_"]) - 5, 0)
        assert row["ids"] == [*row["ids_"][: min(len(row["ids_"]), 5) - 1], 3]


def test_pairs_are_two_columns() -> None:
    rows = [{"a": "w1 w2", "b": "w3", "label": 0}, {"a": "w4", "b": "w5 w6", "label": 1}]
    actual = worked(rows, lambda: (models.reference(), models.tokenizer()), text=("a", "b"))
    assert [row["ids"] for row in actual] == [[2, 5, 6, 3, 7, 3], [2, 8, 3, 9, 10, 3]]


@pytest.mark.filterwarnings("error::embgrad.EmbgradWarning")
def test_a_model_without_a_mask_reads_no_padding(items: Items) -> None:
    rows = items(11)
    expect_alone(worked(rows, models.maskless, ids="ids_"), models.maskless)
    expect_alone(worked(rows, models.maskless, ids="ids_", convention="ids"), models.maskless)
    call = {"call": lambda model, inputs: model(inputs["input_ids"])}
    expect_alone(worked(rows, models.maskless, ids="ids_", **call), models.maskless)


@pytest.mark.framework("torch")
@pytest.mark.filterwarnings("error::embgrad.EmbgradWarning")
@pytest.mark.parametrize("size", [1, 3, 32])
@pytest.mark.parametrize("output", ["saliency", "tables"])
def test_a_model_that_padding_changes_reads_none(items: Items, output: str, size: int) -> None:
    rows = items(11)
    for row in worked(rows, models.forgetful, ids="ids_", output=output, batch_size=size):
        expected = alone(row, models.forgetful)
        np.testing.assert_allclose(row["objective"], expected.objective[0], rtol=1e-12)
        if output == "saliency":
            np.testing.assert_allclose(row["saliency"], expected.saliency()[0], rtol=1e-12)
        else:
            np.testing.assert_allclose(row["values"], expected.table().values, rtol=1e-12)


def _larger(grad: np.ndarray) -> np.ndarray:
    return np.asarray(grad / np.abs(grad).max())


class _Relative(embgrad.Sum):
    def evaluate(self, output: np.ndarray, batch: embgrad.TokenBatch) -> tuple[np.ndarray, np.ndarray]:
        values, cotangent = super().evaluate(output, batch)
        return values / np.abs(output).max(), cotangent / np.abs(output).max()


MEETING: dict[str, tuple[Callable[[], Any], Any, dict[str, Any]]] = {
    "a change": (models.reference, labelled, {"edit": {"word": _larger}}),
    "a model": (models.meeting, labelled, {}),
    "an objective": (models.reference, _Relative(), {}),
}


@pytest.mark.parametrize("lengths", [{"shortest": 6, "longest": 6}, {}], ids=["of one length", "of several"])
@pytest.mark.parametrize("what", MEETING)
def test_rows_that_depend_on_each_other_are_refused(items: Items, what: str, lengths: dict[str, int]) -> None:
    build, objective, options = MEETING[what]
    rows = items(16, **lengths)
    with pytest.raises(
        UnsupportedError,
        match=r"^the row with ids_=.* has other results alone than beside rows of its length: at 'word'",
    ):
        worked(rows, build, objective, ids="ids_", **options)
    assert len(worked(rows, build, objective, ids="ids_", **options, batch_size=1)) == len(rows)


@pytest.mark.parametrize(
    ("first", "second", "passes"),
    [
        ([5, 5, 5, 5], [5, 5, 5, 5], [(4, 5), (1, 5), (1, 5), (4, 5)]),
        ([3, 5, 5, 5], [3, 5, 5, 5], [(4, 5), (1, 3), (1, 5), (4, 5)]),
        ([5, 5, 5, 5], [3, 5, 5, 5], [(4, 5), (1, 5), (1, 5), (4, 5), (1, 3)]),
        ([5], [5], [(1, 5), (1, 5)]),
        ([3, 5], [5, 5], [(2, 5), (1, 3), (1, 5), (2, 5)]),
    ],
)
def test_two_rows_are_run_alone_once_and_a_padded_one_once(
    first: list[int], second: list[int], passes: list[tuple[int, int]]
) -> None:
    seen: list[tuple[int, int]] = []

    def build() -> ReferenceModel:
        def forward(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Any:
            seen.append(input_ids.shape)
            rows = lookup(model["E"], input_ids).tanh()
            return (rows * rows.__class__(attention_mask[..., None] * 1.0)).sum(1)

        return ReferenceModel(forward, {"E": np.random.default_rng(0).normal(size=(30, 3))})

    asked, _ = settings(build, embgrad.Sum(), {"ids": "ids_", "batch_size": 4})
    worker = GradientWorker(asked, Wanted("saliency", "norm", None, ""))
    for lengths in (first, second):
        rows = [
            np.random.default_rng(row).permutation(np.arange(5, 25))[:own].tolist() for row, own in enumerate(lengths)
        ]
        worker(pa.Table.from_pylist([{"ids_": row} for row in rows]))
    assert seen == passes


def test_warnings_of_the_user_s_functions_are_passed_on(items: Items) -> None:
    def call(model: Any, inputs: Any) -> Any:
        warnings.warn("of the user's own", UserWarning, stacklevel=1)
        return model(inputs["input_ids"])

    with pytest.warns(UserWarning, match=r"^of the user's own$") as caught:
        worked(items(3), ids="ids_", call=call, batch_size=1)
    assert [item.filename for item in caught] == [__file__] * 3


def test_padding_on_the_left_keeps_positions(items: Items) -> None:
    def build() -> tuple[Any, Any]:
        model, made = models.torch_bert()
        made.enable_padding(direction="left")
        return model, made

    rows = items(11)
    together, by_themselves = (worked(rows, build, batch_size=size) for size in (8, 1))
    for row, other in zip(together, by_themselves, strict=True):
        assert row["ids"] == other["ids"] == row["ids_"]
        np.testing.assert_allclose(row["saliency"], other["saliency"], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("size", [1, 8])
def test_texts_without_tokens_are_named(items: Items, size: int) -> None:
    def build() -> tuple[Any, Any]:
        from tokenizers import processors

        made = models.tokenizer()
        made.post_processor = processors.Sequence([])
        return models.reference(), made

    rows = items(5)
    rows[3]["text"] = ""
    message = (
        r"^the row with key=3: the tokenizer returned no tokens for any text: expected at least one token, such as"
    )
    with pytest.raises(BatchError, match=message) as caught:
        worked(rows, build, key="key", batch_size=size)
    assert str(caught.value.__cause__).startswith(
        "the tokenizer returned no tokens for any text"
    )  # and no other message


@pytest.mark.framework("torch")
def test_errors_of_the_model_name_the_row(items: Items) -> None:
    rows = items(7)
    rows[4]["text"] = " ".join(["w1"] * 62)  # of 32 positions
    with pytest.raises(
        BatchError, match=r"^the row with key=4: example 0 has 64 tokens, and the model takes 32"
    ) as caught:
        worked(rows, models.torch_bert, key="key")
    assert len(str(caught.value)) < 500

    def call(model: Any, inputs: Any) -> Any:
        raise RuntimeError("out of memory" if len(inputs["input_ids"]) > 1 else "not this\nmore")

    with pytest.raises(BatchError, match=r"^the row with key=0: the model raised RuntimeError: not this"):
        worked(items(3), models.torch_bert, key="key", call=call)


def test_masks_may_be_booleans(items: Items) -> None:
    seen = []

    def call(model: Any, inputs: Any) -> Any:
        seen.append(str(inputs["attention_mask"].dtype))
        return model(inputs["input_ids"], inputs["attention_mask"].astype(float))

    rows = [{**row, "m": [True] * (len(row["ids_"]) - 1) + [False]} for row in items(5)]
    for kind in (bool, int, float):
        given = [{**row, "m": [kind(item) for item in row["m"]]} for row in rows]
        for row in worked(given, ids="ids_", mask="m", call=call):
            expected = embgrad.gradients(
                models.reference(),
                {"input_ids": [row["ids_"]], "attention_mask": [row["m"]]},
                embgrad.CrossEntropy([row["label"]]),
                call=call,
            )
            np.testing.assert_allclose(row["saliency"], expected.saliency()[0], rtol=1e-12)
        assert set(seen) == {"bool" if kind is bool else "int64"}
        seen.clear()
    rows[3]["m"] = [0.5] * len(rows[3]["ids_"])
    with pytest.raises(BatchError, match=r"^the row with key=3: mask holds 0.5 at example 0, position 0: expected 1"):
        worked([{**row, "m": [float(item) for item in row["m"]]} for row in rows], ids="ids_", mask="m", key="key")


def test_masks_and_types_have_the_length_of_the_ids(items: Items) -> None:
    rows = [{**row, "m": [1] * len(row["ids_"])} for row in items(5)]
    rows[3]["m"].append(0)
    length = len(rows[3]["ids_"])
    message = rf"^the row with key=3: the column 'm' of example 0 holds {length + 1} numbers, but 'ids_' holds {length}: expected"
    for option in ("mask", "types"):
        with pytest.raises(BatchError, match=message):
            worked(rows, ids="ids_", key="key", **{option: "m"})


def test_a_point_without_positions_is_refused(items: Items) -> None:
    message = r"the point 'pool' has the shape \(4, 5\): expected \(example, position, dim\), with \(4, \d+\) examples and pos"
    for output in ("saliency", "tables"):
        with pytest.raises(PointError, match=message):
            worked(items(4), models.pooling, ids="ids_", at="pool", output=output)


def test_options_are_passed_to_gradients(items: Items) -> None:
    rows = items(4)
    doubled = {"edit": {"word": lambda gradient: gradient * 2}}
    plain, edited = worked(rows, ids="ids_"), worked(rows, ids="ids_", **doubled)
    for first, second in zip(plain, edited, strict=True):
        np.testing.assert_allclose(np.array(first["saliency"]) * 2, second["saliency"], rtol=1e-12)
    dots = worked(rows, ids="ids_", kind="dot")
    np.testing.assert_allclose(dots[0]["saliency"], alone(rows[0]).saliency("dot")[0], rtol=1e-12)


def test_an_objective_may_be_native(items: Items) -> None:
    rows = items(4)
    ours = worked(rows, objective=embgrad.Logit(1), ids="ids_")
    native = worked(rows, objective=lambda rows: lambda outputs: outputs.column(1), ids="ids_")
    for first, second in zip(ours, native, strict=True):
        np.testing.assert_allclose(first["saliency"], second["saliency"], rtol=1e-12)


def test_other_columns_are_unchanged(items: Items) -> None:
    rows = pa.Table.from_pylist([{**row, "maybe": None if row["key"] == 1 else 2**60} for row in items(5)])
    images = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(20.0).reshape(5, 2, 2))
    rows = rows.append_column("image", images)
    seen = []

    def objective(columns: Any) -> embgrad.Objective:
        seen.append((columns["image"].shape[1:], sorted(columns)))
        return labelled(columns)

    made = blocks(rows, objective=objective, prefix="g_")
    assert made.select(rows.column_names).equals(rows)
    assert made.column_names[-3:] == ["g_ids", "g_objective", "g_saliency"]
    assert seen[0] == ((2, 2), sorted(rows.column_names))


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view(), pa.list_(pa.string_view())])
def test_columns_of_views_are_unchanged(items: Items, kind: pa.DataType) -> None:
    rows = items(6)
    held = [b"abc" if kind == pa.binary_view() else ["abc"] if pa.types.is_list(kind) else "abc"] * 6
    table = pa.Table.from_pylist(rows).append_column("view", pa.array(held, kind))
    made = blocks(table)
    assert made.select(table.column_names).equals(table)
    expect_alone(made.to_pylist())


FAILING: dict[str, tuple[dict[str, Any], dict[str, Any], type[Exception], str]] = {
    "an id": ({"ids_": [3, 99]}, {}, BatchError, "id 99 at example 0, position 1 is outside the table"),
    "a negative id": ({"ids_": [3, -1]}, {}, BatchError, "ids_ holds -1 at example 0, position 1: expected"),
    "no id": ({"ids_": []}, {}, BatchError, r"the column 'ids_' of example 0 holds \[\]"),
    "a label": ({"label": 5}, {}, ObjectiveError, "label 5 at example 0 is out of range"),
    "no text": ({"text": None}, {"ids": None}, BatchError, "example 0 is None: expected a text"),
    "a word": ({"text": "w1 w99"}, {"ids": None}, BatchError, "the tokenizer raised ValueError: 'w99' is not in"),
}


@pytest.mark.parametrize("what", FAILING)
def test_a_row_that_fails_is_named(items: Items, what: str) -> None:
    changes, options, error, message = FAILING[what]
    rows = items(11)
    rows[7].update(changes)
    with pytest.raises(error, match=rf"^the row with key=7: {message}"):
        worked(rows, models.reading, key="key", **{"ids": "ids_", **options})


def test_a_row_without_a_key_is_named_by_its_ids(items: Items) -> None:
    rows = items(11)
    rows[7]["ids_"] = [3, 99]
    with pytest.raises(BatchError, match=r"^the row with ids_=\[3, 99\]: id 99"):
        worked(rows, ids="ids_")
    with pytest.raises(BatchError, match=r"the row with key=.* positions, but length is 2: raise length"):
        worked(items(3, shortest=4), ids="ids_", key="key", output="values", length=2)


@pytest.mark.parametrize("output", ["saliency", "tables"])
def test_an_empty_block_has_no_answer(items: Items, output: str) -> None:
    asked, _ = settings(models.reference, labelled, {"ids": "ids_", "key": "key"})
    nothing = pa.Table.from_pylist(items(1)).slice(0, 0)
    assert GradientWorker(asked, Wanted(output, "norm", None, ""))(nothing).num_rows == 0
    total = Total()
    total.add_arrow(TableWorker(asked)(nothing))
    assert (total.table(), total.tally) == (None, Tally())


def test_rows_that_fail_only_together_are_named(items: Items) -> None:
    def objective(rows: Any) -> embgrad.Objective:
        return embgrad.CrossEntropy(rows["label"] + 9 * (len(rows["label"]) > 1))

    with pytest.raises(ObjectiveError, match=r"^3 rows together, of which the row with key=0 is the first: label"):
        worked(items(3), objective=objective, ids="ids_", key="key")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"text": "txt"}, BatchError, "has no column 'txt': expected one of .*Did you mean 'text'"),
        ({"ids": "ids_", "at": "nowhere"}, PointError, "^there is no point|nowhere"),
        (
            {"build": models.reference},
            BatchError,
            "hold texts, in the column 'text', but build.. returned no tokenizer",
        ),
        ({"build": lambda: 3}, BackendError, "no installed backend takes a model of type builtins.int"),
        ({"build": lambda: Path("/no/such").read_text()}, BackendError, "^build.. raised FileNotFoundError"),
        ({"build": lambda: sys.exit("no weights")}, BackendError, "^build.. raised SystemExit: no weights"),
        (
            {"build": lambda: (models.reference(),) * 2},
            BackendError,
            "a tuple of 2: expected the model, or .model, tokenizer.",
        ),
        ({"objective": lambda rows: rows["lable"]}, BatchError, "has no column 'lable'.*Did you mean 'label'"),
        ({"objective": lambda out: out.logits}, ObjectiveError, "raised AttributeError.*receives the rows' columns"),
        ({"objective": lambda rows: 3}, ObjectiveError, "the objective's function returned 3: expected an objective"),
        ({"objective": lambda rows: embgrad.Scalar(len)}, UnsupportedError, "returned a Scalar"),
    ],
)
def test_errors_of_all_rows_name_no_row(
    items: Items, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    given: dict[str, Any] = {"build": models.reading, "objective": labelled, **changes}
    with pytest.raises(error, match=message) as caught:
        worked(items(3), given.pop("build"), given.pop("objective"), **given)
    assert "the row with" not in str(caught.value) or "objective" in changes


def test_tables_of_an_overridden_point_are_refused(items: Items) -> None:
    asked, _ = settings(models.reference, labelled, {"ids": "ids_", "override": {"word": lambda value: value * 2}})
    rows = pa.Table.from_pylist(items(3))
    with pytest.raises(PointError, match=r"^the point 'word' was overridden, so that there is no table"):
        TableWorker(asked)(rows)
    with pytest.raises(PointError, match=r"^the point 'word' was overridden, so that there is no table"):
        GradientWorker(asked, Wanted("tables", "norm", None, ""))(rows)


def test_a_column_name_in_use_is_refused(items: Items) -> None:
    rows = [{**row, "saliency": 1} for row in items(3)]
    with pytest.raises(EmbgradError, match=r"has a column 'saliency' already.*pass prefix='g_'"):
        worked(rows, ids="ids_")
    assert "g_saliency" in worked(rows, ids="ids_", prefix="g_")[0]
