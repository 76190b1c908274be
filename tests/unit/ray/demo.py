"""MiniLM over hundreds of sentences on a local Ray with two workers, of which one is killed: `python -m tests.unit.ray.demo`."""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.unit.ray.cluster import local_ray

SUBJECTS = ("The plot", "Her second novel", "A quiet man from the harbour", "The committee", "My sister")
VERBS = (
    "collapses halfway through",
    "was praised by nearly everyone who read it",
    "never came back",
    "plays the piano badly",
)
ENDS = (".", ", and nobody in the audience cared.", " because of the weather, or so the papers said at the time.", "!")
TIMES = ("", "In the end, ", "Last year ", "To the surprise of all, ", "Yesterday at noon, when the bells rang, ")

#: What float32 leaves of a network of some twenty matrices, relative to the largest entry.
MOST = 1e-5


def sentences(count: int) -> list[str]:
    every = itertools.product(TIMES, SUBJECTS, VERBS, ENDS)
    return ["".join((time, subject, " ", verb, end)) for time, subject, verb, end in itertools.islice(every, count)]


def minilm() -> tuple[Any, Any]:
    import tokenizers

    import embgrad
    from embgrad.loading.minilm import minilm_folder

    folder = minilm_folder()
    return embgrad.zoo.load_bert(folder, "torch"), tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


def pooled(rows: Any) -> Any:
    import embgrad

    return embgrad.Sum(output="pooled")


def main(arguments: list[str] | None = None) -> int:
    """Run the demonstration; return 0 if no row was lost or repeated and the results are those of one process."""
    parser = argparse.ArgumentParser(prog="python -m tests.unit.ray.demo", description=__doc__)
    parser.add_argument("--sentences", type=int, default=400)
    count = parser.parse_args(arguments).sentences
    texts = sentences(count)
    os.environ.setdefault("USE_TF", "0")  # or transformers imports TensorFlow in this process, too
    with local_ray(logging.CRITICAL), tempfile.TemporaryDirectory() as folder:
        return run(texts, Path(folder))


def run(texts: list[str], folder: Path) -> int:
    import pyarrow as pa
    import ray.data
    from pyarrow import parquet

    import embgrad
    import embgrad.ray
    from tests.unit.ray.models import Observed, kill

    table = pa.table({"number": np.arange(len(texts)), "text": texts})
    parquet.write_table(table, folder / "sentences.parquet", row_group_size=50)
    rows = ray.data.read_parquet(str(folder / "sentences.parquet"))
    asked: dict[str, Any] = {"key": "number", "batch_size": 8, "workers": 2}

    def observed(name: str) -> Observed:
        (folder / name).mkdir()
        return Observed(folder / name, minilm, pooled, seconds=0)

    first, second = observed("first"), observed("second")
    killed = kill(first, 1)
    report = embgrad.ray.write(rows, first, first.objective, folder / "out", **asked)
    also = kill(second, 1)
    summed = embgrad.ray.table(rows, second, second.objective, **asked)

    model, tokenizer = minilm()
    alone = embgrad.gradients(model, embgrad.encode(texts, tokenizer), embgrad.Sum(output="pooled"), batch_size=8)
    assert isinstance(alone, embgrad.results.EmbeddingGradients)
    actual = parquet.read_table(folder / "out").sort_by("number")
    saliency, real = alone.saliency(), alone.real
    difference = max(
        float(np.abs(np.array(item) - saliency[number, real[number]]).max())
        for number, item in zip(actual["number"].to_pylist(), actual["saliency"].to_pylist(), strict=True)
    )
    expected = alone.table().to_dense()
    of_table = float(np.abs(summed.to_dense() - expected).max())
    print(f"model                all-MiniLM-L6-v2 (PyTorch), 2 workers, {len(texts)} sentences as Parquet")
    print(f"actors killed        {len(killed)} while writing, {len(also)} while adding up")
    print(f"models built         {len(first.builders())} while writing, {len(second.builders())} while adding up")
    print(f"rows in, rows out    {report.rows_in}, {report.rows_out}")
    print("largest difference from one process")
    print(f"  saliency           {difference:.2g}, of values up to {saliency.max():.3g}")
    print(f"  table, the sum     {of_table:.2g}, of values up to {np.abs(expected).max():.3g}")
    whole = report.rows_in == report.rows_out == len(texts) and actual["number"].to_pylist() == list(range(len(texts)))
    same = difference <= MOST * saliency.max() and of_table <= MOST * np.abs(expected).max()
    return 0 if whole and same and killed and also else 1


if __name__ == "__main__":
    sys.exit(main())
