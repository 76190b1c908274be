"""Ten methods on a classifier of prompt injections, by the metrics of DeYoung et al. 2020 and of Sanyal and Ren 2021.

`python -m tests.benchmarks.injections --write docs/faithfulness.md` measures them on the texts of tests/data/injections.txt that
the classifier takes for injections, in each of which a harmless sentence stands before an injected one. Needs metatronnanoguard.
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

import embgrad
from embgrad.methods import (
    DiscretizedIntegratedGradients,
    GradientShap,
    InputXGradient,
    IntegratedGradients,
    KernelShap,
    Lime,
    Occlusion,
    Saliency,
    SequentialIntegratedGradients,
    SmoothGrad,
)
from tests.support.nanoguard import CLASSES, load_model, load_tokenizer

TEXTS: Final = Path(__file__).parents[1] / "data" / "injections.txt"
BEGIN: Final = "<!-- begin: made by python -m tests.benchmarks.injections -->"
END: Final = "<!-- end: made by python -m tests.benchmarks.injections -->"

#: The shares of ERASER, and that of the log-odds.
SHARES: Final = (0.01, 0.05, 0.1, 0.2, 0.5)
TOP: Final = 0.2

#: The standard deviation of noise: a tenth of that of the table's entries.
SIGMA: Final = 1.3

METHODS: Final[Mapping[str, Any]] = {
    "gradient": Saliency(),
    "input × gradient": InputXGradient(),
    "SmoothGrad": SmoothGrad(20, sigma=SIGMA),
    "integrated gradients": IntegratedGradients(30, baseline="pad", keep_special=True),
    "GradientShap": GradientShap(["pad", "mean"], samples=25, sigma=SIGMA, keep_special=True),
    "sequential IG": SequentialIntegratedGradients(4, baseline="pad", keep_special=True),
    "discretized IG": DiscretizedIntegratedGradients(20, baseline="pad", keep_special=True),
    "occlusion": Occlusion("pad", keep_special=True),
    "LIME": Lime(100, baseline="pad", keep_special=True),
    "KernelShap": KernelShap(100, baseline="pad", keep_special=True),
}

#: The heading of each column, whether high values are faithful, and its number of decimals.
COLUMNS: Final = {
    "comprehensiveness": (True, 2),
    "sufficiency": (False, 2),
    "log-odds": (False, 1),
    "leave-one-out": (True, 2),
    "in the injection": (True, 2),
}


def detected(model: Any, tokenizer: Any) -> dict[str, Any]:
    """Return the texts that the classifier takes for injections, each as a batch of its own: padding changes its answers."""
    texts = TEXTS.read_text(encoding="utf-8").splitlines()
    batches = {text: embgrad.encode([text], tokenizer) for text in texts}
    return {text: batch for text, batch in batches.items() if embgrad.evaluate(model, batch, _objective())[0] > 0.5}


def _objective() -> embgrad.Probability:
    return embgrad.Probability(CLASSES.index("injection"))


def measure(
    limit: int | None = None, report: Callable[[str], Any] = lambda line: None
) -> dict[str, dict[str, np.ndarray]]:
    """Return by method the values of each column for each text.

    Args:
        limit: how many texts; None for all.
        report: called with a line after each text.
    """
    model, tokenizer = load_model(), load_tokenizer()
    batches = dict(list(detected(model, tokenizer).items())[:limit])
    rows: dict[str, dict[str, list[float]]] = {
        name: {column: [] for column in COLUMNS} for name in (*METHODS, "random")
    }
    random = np.random.default_rng(0)
    for number, (text, batch) in enumerate(batches.items(), 1):
        scores: dict[str, Any] = {
            name: embgrad.attribute(model, batch, _objective(), method, tokenizer=tokenizer).scores
            for name, method in METHODS.items()
        }
        scores["random"] = random.normal(size=batch.shape)
        for name, values in _of_text(model, batch, scores, text, tokenizer).items():
            for column, value in values.items():
                rows[name][column].append(value)
        report(f"{number} of {len(batches)} texts")
    return {name: {column: np.array(values) for column, values in row.items()} for name, row in rows.items()}


def _of_text(
    model: Any, batch: Any, scores: Mapping[str, Any], text: str, tokenizer: Any
) -> dict[str, dict[str, float]]:
    options = {"positive": False, "curves": False, "tokenizer": tokenizer}
    erased = embgrad.metrics.faithfulness(model, batch, _objective(), scores, shares=SHARES, **options)
    log_probability = embgrad.LogProbability([CLASSES.index("injection")], shift=False)
    padded = embgrad.metrics.faithfulness(
        model, batch, log_probability, scores, shares=[TOP], remove="pad", leave_one_out=False, **options
    )
    injected = _injected(batch, text)
    return {
        name: {
            "comprehensiveness": float(erased[name]["aopc_comprehensiveness"][0]),
            "sufficiency": float(erased[name]["aopc_sufficiency"][0]),
            "log-odds": -float(padded[name]["comprehensiveness"][0, 0]),
            "leave-one-out": float(erased[name]["loo_correlation"][0]),
            "in the injection": _precision(np.asarray(scores[name])[0], injected),
        }
        for name in scores
    }


def _injected(batch: Any, text: str) -> np.ndarray:
    """Return which tokens lie in the text's second sentence, bool, (position,)."""
    start = len(re.split(r"(?<=[.?]) ", text)[0])
    return np.asarray(batch.offsets[0, :, 1] > start)


def _precision(scores: np.ndarray, rationale: np.ndarray) -> float:
    """Return the share of the tokens with the highest scores, as many as the rationale has, that are in the rationale."""
    ranked = np.argsort(-scores[1:], kind="stable") + 1  # the special token at the beginning is no word
    return float(rationale[ranked[: rationale.sum()]].mean())


def table(figures: Mapping[str, Mapping[str, np.ndarray]]) -> str:
    """Return the means and their standard errors as a table in Markdown."""
    heads = [f"{column} {'↑' if high else '↓'}" for column, (high, _) in COLUMNS.items()]
    lines = [f"| method | {' | '.join(heads)} |", f"|---|{'---:|' * len(heads)}"]
    for name, row in figures.items():
        cells = [_cell(row[column], decimals) for column, (_, decimals) in COLUMNS.items()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(values: np.ndarray, decimals: int) -> str:
    known = values[~np.isnan(values)]
    return f"{known.mean():.{decimals}f} ± {known.std(ddof=1) / len(known) ** 0.5:.{decimals}f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.injections", description=__doc__)
    parser.add_argument("--texts", type=int, help="how many texts; all that the classifier detects by default")
    parser.add_argument("--write", type=Path, help="the page whose table is replaced")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", embgrad.EmbgradWarning)  # sums that few steps miss: here only the ranking counts
    made = table(measure(options.texts, lambda line: print(line, file=sys.stderr, flush=True)))
    print(made)
    if options.write is not None:
        page = options.write.read_text(encoding="utf-8")
        before, rest = page.split(BEGIN)
        options.write.write_text(f"{before}{BEGIN}\n\n{made}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
