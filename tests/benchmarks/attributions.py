"""Attribution methods beside captum, in one process: whether the figures agree, the time in turns and the peak of memory.

Runs in the environment of rivals.txt. captum's random draws are replaced by those of
embgrad, so that sampled methods compute the same.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np
import torch
import transformers
from captum.attr import GradientShap, LayerIntegratedGradients, NoiseTunnel, Occlusion, Saliency
from measuring import distance, in_turns, peak_of  # by path, since some of the rivals install a package named tests
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

import embgrad
from embgrad.attribution.draws import generators_of, normal
from embgrad.loading.minilm import minilm_folder

CLASS: Final = 1
TEXTS: Final = [
    "A gripping film, warm and funny from the first scene to the last.",
    "The plot is thin.",
    "Bread rises.",
]
#: The id of the baseline, [PAD].
PAD: Final = 0
SAMPLES: Final = 6
SIGMA: Final = 0.02
STEPS: Final = 50


class Question:
    """A classifier of real weights with a random head, and a batch."""

    def __init__(self, dtype: Any, texts: list[str]) -> None:
        torch.manual_seed(0)
        self.model = BertForSequenceClassification.from_pretrained(minilm_folder(), num_labels=2).to(dtype).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
        self.batch = embgrad.encode(texts, self.tokenizer)
        self.ids, self.mask, self.types = (torch.tensor(value) for value in self.batch.to_huggingface().values())
        self.rows = self.model.bert.embeddings.word_embeddings(self.ids).detach()

    def of_ids(self, ids: Any, mask: Any, types: Any) -> Any:
        return self.model(ids, mask, types).logits

    def of_rows(self, rows: Any) -> Any:
        times = len(rows) // len(self.mask)
        mask, types = (value.repeat_interleave(times, 0) for value in (self.mask, self.types))
        return self.model(inputs_embeds=rows, attention_mask=mask, token_type_ids=types).logits

    def attribute(self, method: Any, **options: Any) -> Any:
        return embgrad.attribute(self.model, self.batch, embgrad.Logit(CLASS), method, **options)

    def integrated(self, layer: Any, rule: str, steps: int = STEPS, size: int | None = None) -> np.ndarray:
        found = LayerIntegratedGradients(self.of_ids, layer).attribute(
            self.ids,
            torch.where(self.mask.bool(), PAD, self.ids),
            target=CLASS,
            additional_forward_args=(self.mask, self.types),
            n_steps=steps,
            method=rule,
            internal_batch_size=size,
        )
        return np.asarray(found.detach().numpy())


def agreements(question: Question) -> Iterator[tuple[str, float]]:
    """Yield each method with the relative L2 distance between the two tools' figures."""
    table, hidden = question.model.bert.embeddings.word_embeddings, question.model.bert.encoder.layer[3].output
    for rule in ("gausslegendre", "riemann_left", "riemann_right", "riemann_middle", "riemann_trapezoid"):
        ours = question.attribute(embgrad.methods.IntegratedGradients(STEPS, PAD, rule))
        # captum's weights of the trapezoid rule sum to 1 - 1/steps.
        scale = STEPS / (STEPS - 1) if rule == "riemann_trapezoid" else 1.0
        yield f"integrated gradients, {rule}", distance(ours.values, scale * question.integrated(table, rule))
    ours = question.attribute(embgrad.methods.IntegratedGradients(STEPS, PAD), at="layer.3")
    yield "integrated gradients at layer.3", distance(ours.values, question.integrated(hidden, "gausslegendre"))
    for reduce, kind in (("mean", "smoothgrad"), ("square", "smoothgrad_sq"), ("variance", "vargrad")):
        ours = question.attribute(embgrad.methods.SmoothGrad(SAMPLES, SIGMA, reduce=reduce))
        with noise_of(question.batch, question.rows):
            theirs = NoiseTunnel(Saliency(question.of_rows)).attribute(
                question.rows, nt_type=kind, nt_samples=SAMPLES, stdevs=SIGMA, target=CLASS, abs=False
            )
        yield f"SmoothGrad, {reduce}", distance(ours.values, theirs.detach().numpy())
    ours = question.attribute(embgrad.methods.GradientShap(samples=SAMPLES, keep_special=False))
    with fractions_of(question.batch, question.rows):
        zeros = torch.where(question.mask.bool()[..., None], 0.0, question.rows)
        parts = [
            GradientShap(lambda rows, own=own: own(rows)).attribute(
                question.rows[i : i + 1], zeros[i : i + 1], n_samples=SAMPLES, target=CLASS
            )
            for i, own in enumerate(question_of_each(question))
        ]
    yield "GradientShap", distance(ours.values, torch.cat(parts).detach().numpy())
    row = table.weight[PAD].detach()
    theirs = Occlusion(question.of_rows).attribute(
        question.rows, (1, question.rows.shape[-1]), baselines=row.expand(question.rows.shape), target=CLASS
    )
    scores = theirs[..., 0].detach().numpy() * question.batch.real
    yield "occlusion", distance(question.attribute(embgrad.methods.Occlusion(PAD)).scores, scores)


def question_of_each(question: Question) -> list[Callable[[Any], Any]]:
    """Return for each example the logits of rows for that example."""

    def of(example: int) -> Callable[[Any], Any]:
        def logits(rows: Any) -> Any:
            mask, types = (value[example].expand(len(rows), -1) for value in (question.mask, question.types))
            return question.model(inputs_embeds=rows, attention_mask=mask, token_type_ids=types).logits

        return logits

    return [of(example) for example in range(len(question.ids))]


@contextmanager
def noise_of(batch: embgrad.TokenBatch, rows: Any) -> Iterator[None]:
    """Let captum's NoiseTunnel draw the noise of embgrad; it draws all samples of an example, one example after another."""
    generators = generators_of(batch, 0)
    samples = np.stack([normal(generators, batch.real, rows.shape[-1]) for _ in range(SAMPLES)], 1)
    drawn = torch.tensor(SIGMA * samples.reshape(-1, *samples.shape[2:]), dtype=rows.dtype)
    with mock.patch("torch.normal", return_value=drawn):
        yield


@contextmanager
def fractions_of(batch: embgrad.TokenBatch, rows: Any) -> Iterator[None]:
    """Let captum's GradientShap draw the fractions of embgrad, one example after another."""
    generators, drawn = generators_of(batch, 0), []
    for _ in range(SAMPLES):
        normal(generators, batch.real, rows.shape[-1])
        drawn.append([(generator.integers(1), generator.random())[1] for generator in generators])
    examples = iter(np.array(drawn).T)
    with mock.patch("numpy.random.uniform", side_effect=examples):
        yield


def speeds(question: Question, seconds: float, sizes: list[int | None], steps: int) -> Iterator[dict[str, Any]]:
    """Yield the ratios of embgrad's time and peak to captum's integrated gradients, for several internal batch sizes."""
    table = question.model.bert.embeddings.word_embeddings
    functions: dict[Any, Callable[[], Any]] = {
        size: (lambda size=size: question.integrated(table, "gausslegendre", steps, size)) for size in sizes
    }
    functions["ours"] = lambda: question.attribute(embgrad.methods.IntegratedGradients(steps, PAD)).values
    times = in_turns(functions, seconds)["times"]
    peaks = {name: min(peak_of(function) for _ in range(2)) for name, function in functions.items()}
    for size in sizes:
        note = "as shipped" if size is None else f"internal_batch_size={size}"
        yield {"note": note, "time": times["ours"] / times[size], "peak": peaks["ours"] / peaks[size]}


def rows(seconds: float) -> Iterator[dict[str, Any]]:
    """Yield the rows of the page: distances by dtype, then times and peaks."""
    distances: dict[str, dict[str, float]] = {}
    for dtype in (torch.float64, torch.float32):
        for name, apart in agreements(Question(dtype, TEXTS)):
            distances.setdefault(name, {})[str(dtype)[6:]] = apart
    for name, by_dtype in distances.items():
        yield {"what": name, "note": "", **by_dtype}
    small = Question(torch.float32, [TEXTS[1]])
    config = BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128)
    small.model = BertForSequenceClassification(config).eval()
    short = Question(torch.float32, [("good film " * 7).strip()])
    long = Question(torch.float32, [("good film " * 63).strip()] * 16)
    for what, question, sizes, steps in (
        (f"integrated gradients, {STEPS} steps, 1 × 16", short, [None], STEPS),
        ("integrated gradients, 8 steps, 16 × 128", long, [None, 16, 32], 8),
        (f"integrated gradients, {STEPS} steps, 1 × 7, 2 layers × 64", small, [None], STEPS),
    ):
        for row in speeds(question, seconds, sizes, steps):
            yield {"what": what, **row}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python tests/benchmarks/attributions.py", description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    written = []
    for row in rows(options.seconds):
        written.append({"tool": "captum", "version": version("captum"), **row})
        print(f"  captum: {row}", file=sys.stderr, flush=True)
    options.output.write_text(json.dumps(written), encoding="utf-8")


if __name__ == "__main__":
    main()
