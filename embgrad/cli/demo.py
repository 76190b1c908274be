"""The demo: the same call in each framework with one checkpoint's weights, and numbers that show that they agree."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from embgrad.checkpoints.load_bert import load_bert
from embgrad.cli.result_lines import legend_of, text_lines
from embgrad.comparison.compare import compare
from embgrad.comparison.result import Comparison
from embgrad.engine.gradients import gradients as compute
from embgrad.errors import BackendError
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.encode import encode
from embgrad.keras.choice import KERAS
from embgrad.loading.models import installed_frameworks, prepare_tensorflow
from embgrad.loading.tokenizer import tokenizer_of
from embgrad.objectives.objectives import Sum
from embgrad.results.gradient_display import gradient_lines
from embgrad.results.gradients import EmbeddingGradients

__all__ = [
    "TEXTS",
    "agree",
    "describe",
    "example_batch",
    "measure",
    "show",
    "usable_frameworks",
]

#: The batch: two sentences and a pair, of different lengths, so that there is padding.
TEXTS: Final[list[str | tuple[str, str]]] = [
    "A gripping film, told with unforgettable warmth.",
    ("A man plays the piano.", "Someone is making music."),
    "Never again.",
    "The plot collapses halfway through, and nobody in the audience seemed to care.",
]

#: Limits for agreement: the relative L2 distance from the first framework, and the largest gradient at padding.
MOST_RELATIVE_L2, MOST_PAD = 5e-6, 1e-7


@dataclass(frozen=True)
class Row:
    """A row of the table: one framework, its result and its comparison with the first."""

    framework: str
    version: str
    model: str
    comparison: Comparison
    gradients: EmbeddingGradients


def usable_frameworks() -> list[str]:
    """Return the frameworks that are installed."""
    names = installed_frameworks()
    if not names:
        raise BackendError(
            "the demo loads a BERT, and no framework is installed that can: pip install 'embgrad[torch,demo]'. Run embgrad "
            "doctor for details"
        )
    return names


def example_batch(folder: Path) -> TokenBatch:
    """Return the demo's texts encoded by the folder's tokenizer, after setting the environment variables for TensorFlow."""
    prepare_tensorflow()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return encode(TEXTS, tokenizer_of(folder))


def measure(folder: Path, frameworks: list[str]) -> list[Row]:
    """Make the same call in each framework and compare each result with that of the first framework."""
    batch = example_batch(folder)
    objective = Sum(output="pooled")
    rows: list[Row] = []
    for framework in frameworks:
        model = load_bert(folder, framework)
        gradients = compute(model, batch, objective)
        first = rows[0].gradients if rows else gradients
        rows.append(
            Row(
                framework=framework,
                version=_version(framework, gradients.provenance),
                model=gradients.provenance["model"].rpartition(".")[2],
                comparison=compare(first, gradients),
                gradients=gradients,
            )
        )
    return rows


def agree(rows: Sequence[Row]) -> bool:
    """Return whether all frameworks agree with the first and none has a gradient at padding."""
    close = all(row.comparison.figures.relative_l2 < MOST_RELATIVE_L2 for row in rows)
    return close and all(row.gradients.pad_leak < MOST_PAD for row in rows)


def describe(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the numbers by framework, ready for JSON."""
    return {
        "agrees": agree(rows),
        "frameworks": {
            row.framework: {
                "version": row.version,
                "model": row.model,
                "figures": row.comparison.figures.to_dict(),
                "pad_leak": row.gradients.pad_leak,
            }
            for row in rows
        },
    }


def show(rows: Sequence[Row], console: Any, picture: Path | None = None) -> None:
    """Print the table and the coloured sentences; write them to `picture` as SVG if it is given."""
    if picture is not None:
        from rich.console import Console

        console = Console(file=console.file, record=True, width=100, highlight=False)
    first = rows[0].gradients
    examples, positions, dim = first.shape
    padded = 0 if first.mask is None else int((first.mask == 0).sum())
    console.print("embgrad.gradients(model, batch, embgrad.Sum(output='pooled'))", style="bold")
    console.print(f"{examples} examples × {positions} positions × {dim}, {padded} positions padded")
    console.print(_table(rows))
    norm = float(np.linalg.norm(first.values.astype(np.float64)))
    console.print(f"norm of the gradient in {rows[0].framework}: {norm!r}")
    coloured = picture is not None or (console.color_system is not None and not console.no_color)
    console.print(f"each token by the {legend_of(first, coloured)}\n")
    for line in text_lines(gradient_lines(first, "norm", "tokens", range(examples)), coloured):
        console.print(line)
    if picture is not None:
        svg = console.export_svg(title="embgrad demo")
        # Rich links to web fonts; any monospaced font of the reader is sufficient.
        svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
        picture.write_text(svg, encoding="utf-8")


def _table(rows: Sequence[Row]) -> Any:
    from rich.table import Table

    table = Table("framework", "model", caption=f"relative L2 is against {rows[0].framework}")
    for heading in ("relative L2", "largest at padding"):
        table.add_column(heading, justify="right")
    for row in rows:
        relative = f"{row.comparison.figures.relative_l2:.1e}" if row is not rows[0] else "–"
        table.add_row(f"{row.framework} {row.version}", row.model, relative, f"{row.gradients.pad_leak:.1e}")
    return table


def _version(framework: str, provenance: Mapping[str, Any]) -> str:
    """Return the framework's version; for Keras also the backend that it runs on."""
    if framework == KERAS:
        return f"{sys.modules[KERAS].__version__} on {provenance['backend']}"
    return str(next(iter(provenance["versions"].values()))).partition("+")[0]
