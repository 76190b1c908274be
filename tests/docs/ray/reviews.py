"""The classifier, the tokenizer and the reviews that the page on Ray uses."""

from __future__ import annotations

from typing import Any

from tests.unit.ray.models import DIM, VOCAB, reference, split

ROWS = 24


def classifier(folder: str) -> Any:
    return reference()


def tokenizer_of(folder: str) -> Any:
    return split


def write_reviews() -> None:
    """Write `reviews.parquet`."""
    import pyarrow as pa
    from pyarrow import parquet

    texts = [f"w1 w2 {'w3 ' * (number % 5)}w4 w{number + 5}" for number in range(ROWS)]
    rows = pa.table({"text": texts, "label": [number % 2 for number in range(ROWS)]})
    parquet.write_table(rows, "reviews.parquet", row_group_size=8)


def expect_all(dataset: Any, table: Any, folder: str) -> None:
    """Assert that each row is in the dataset and the files once, and that the table is the model's."""
    from pyarrow import parquet

    assert sorted(dataset.to_pandas()["text"]) == sorted(parquet.read_table("reviews.parquet")["text"].to_pylist())
    assert parquet.read_table(folder).num_rows == ROWS
    assert table.shape == (VOCAB, DIM)
    assert table.values.any()
