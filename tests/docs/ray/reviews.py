"""The classifier, the tokenizer and the reviews that the page on Ray uses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROWS = 24


def classifier(folder: str) -> Any:
    import torch

    import embgrad

    class Classifier(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert, self.head = embgrad.zoo.load_bert(folder, "torch"), torch.nn.Linear(384, 2)

        def forward(self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None) -> Any:
            return self.head(self.bert(input_ids, attention_mask, token_type_ids).pooler_output)

    torch.manual_seed(0)
    return Classifier().eval()


def tokenizer_of(folder: str) -> Any:
    import tokenizers

    return tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")


def write_reviews() -> Any:
    """Write `reviews.parquet` and `reviews.jsonl`, and return the first as a dataset."""
    import pyarrow as pa
    import ray.data
    from pyarrow import parquet

    texts = [f"It was {'very ' * (number % 5)}good, said reader {number}." for number in range(ROWS)]
    rows = pa.table({"text": texts, "label": [number % 2 for number in range(ROWS)]})
    parquet.write_table(rows, "reviews.parquet", row_group_size=8)
    Path("reviews.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()), encoding="utf-8")
    return ray.data.read_parquet("reviews.parquet")


def expect_all(dataset: Any, table: Any, folder: str) -> None:
    """Assert that each row is in the dataset and the files once, and that the table is the model's."""
    from pyarrow import parquet

    assert sorted(dataset.to_pandas()["text"]) == sorted(parquet.read_table("reviews.parquet")["text"].to_pylist())
    assert parquet.read_table(folder).num_rows == ROWS
    assert table.shape == (30522, 384)
    assert table.values.any()
