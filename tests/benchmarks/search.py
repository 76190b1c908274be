"""GCG beside nanoGCG in one process: the processor time of a step in turns, and the loss that each reaches, as JSON.

Runs in the environment of rivals.txt. The model is a GPT-2 of random weights; its tokenizer is a byte-level BPE that is trained
here, on the documentation of embgrad and the sources of Python's standard library. Use OMP_NUM_THREADS=1: threads that wait count
as processor time.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

import embgrad
from embgrad.token_search import GCG, is_ascii
from embgrad.token_search.search import search

ROOT: Final = Path(__file__).parents[2]
VOCAB: Final = 50_257
BEFORE: Final = "Write a short letter to a friend about the weather:\n"
START: Final = " ".join("x" * 20)
TARGET: Final = " Sure, here is a short letter about the weather"

#: nanoGCG's defaults.
CANDIDATES: Final = 512
TOP: Final = 256


class WithTuples(GPT2LMHeadModel):  # type: ignore[misc]
    """GPT-2 as nanoGCG expects it: of transformers 4.47 at most, whose keys and values are tuples."""

    def forward(self, *args: Any, past_key_values: Any = None, **options: Any) -> Any:
        if past_key_values is not None:
            past_key_values = DynamicCache(tuple(map(tuple, past_key_values)))
        returned = super().forward(*args, past_key_values=past_key_values, **options)
        if returned.past_key_values is not None:
            returned.past_key_values = tuple((layer.keys, layer.values) for layer in returned.past_key_values.layers)
        return returned


def trained(file: Path) -> PreTrainedTokenizerFast:
    """Return the tokenizer, which is kept in a file."""
    if not file.exists():
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=VOCAB, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"], show_progress=False
        )
        library = Path(sysconfig.get_paths()["stdlib"])
        left_out = {"site-packages", "test", "tests"}  # some tests are of other encodings
        files = sorted(path for path in library.rglob("*.py") if not left_out & set(path.parts))
        tokenizer.train([str(path) for path in (*sorted((ROOT / "docs").glob("*.md")), *files)], trainer)
        assert tokenizer.get_vocab_size() == VOCAB, "an id without a token cannot be found"
        tokenizer.save(str(file))
    return PreTrainedTokenizerFast(tokenizer_file=str(file), eos_token="<|endoftext|>", pad_token="<|endoftext|>")


@dataclass
class Run:
    """A run of a tool.

    Attributes:
        losses: the mean cross-entropy of the target, of the best text so far, before the first step and after each.
        seconds: the processor time of each step.
        evaluated: how many texts each step evaluated.
        texts: the text after each step, as ids and as a string.
    """

    losses: list[float]
    seconds: list[float]
    evaluated: list[int]
    texts: list[tuple[list[int], str]]

    def stable(self, tokenizer: Any) -> float:
        """Return the share of the texts that tokenise to their own ids."""
        return float(np.mean([tokenizer(text)["input_ids"] == ids for ids, text in self.texts]))


class Question:
    """A language model, a prompt, and a continuation that is to become likely."""

    def __init__(self, folder: Path, layers: int, dim: int) -> None:
        self.tokenizer = trained(folder / "search-tokenizer.json")
        self._config = GPT2Config(n_layer=layers, n_embd=dim, n_head=dim // 64, vocab_size=VOCAB)

    def draw(self, seed: int) -> None:
        """Draw the model's weights."""
        torch.manual_seed(seed)
        self.model = GPT2LMHeadModel(self._config).eval()
        self.theirs = WithTuples(self._config).eval()
        self.theirs.load_state_dict(self.model.state_dict())

    @cached_property
    def ids(self) -> tuple[list[int], list[int], list[int]]:
        """The ids of the parts of the text."""
        before, start, target = (self.tokenizer(text)["input_ids"] for text in (BEFORE, START, TARGET))
        assert before + start + target == self.tokenizer(BEFORE + START + TARGET)["input_ids"]
        return before, start, target

    def embgrad(self, steps: int, candidates: int, seed: int) -> Run:
        before, start, target = self.ids
        ids = np.array([before + start + target])
        first, end = len(before), len(before) + len(start)
        labels = np.where(np.arange(ids.shape[1]) >= end, ids, -100)
        times: list[float] = []
        found = search(
            self.model,
            embgrad.TokenBatch(ids),
            embgrad.LogProbability(labels),
            GCG(steps=steps, candidates=candidates, top=TOP, seed=seed),
            positions=list(range(first, end)),
            allowed=is_ascii,
            tokenizer=self.tokenizer,
            progress=lambda done, total: times.append(time.process_time()),
        )
        history = found.history
        texts = [(row[0].tolist(), self.tokenizer.decode(row[0])) for row in history.ids[1:]]
        assert found.provenance["prefix_cache"], found.provenance
        return Run(
            (-history.objective[:, 0] / len(target)).tolist(),
            np.diff(times).tolist(),
            np.diff(history.evaluations[:, 0]).tolist(),
            texts,
        )

    def nanogcg(self, steps: int, candidates: int, seed: int, batch_size: int | None = None) -> Run:
        import nanogcg
        from nanogcg import gcg

        logging.getLogger("nanogcg").setLevel(logging.ERROR)
        times: list[float] = []
        evaluated: list[int] = []
        losses_of = gcg.GCG._compute_candidates_loss_original

        def counted(own: Any, size: int, embeds: Any) -> Any:
            evaluated.append(len(embeds))
            return losses_of(own, size, embeds)

        def turns(steps: Any) -> Any:
            for step in steps:
                times.append(time.process_time())
                yield step
            times.append(time.process_time())

        config = nanogcg.GCGConfig(
            num_steps=steps,
            optim_str_init=START,
            search_width=candidates,
            topk=TOP,
            seed=seed,
            batch_size=batch_size,
            verbosity="ERROR",
        )
        with (
            mock.patch.multiple(gcg, tqdm=turns),
            mock.patch.object(gcg.GCG, "_compute_candidates_loss_original", counted),
        ):
            found = nanogcg.run(self.theirs, self.tokenizer, BEFORE, TARGET, config)
        torch.use_deterministic_algorithms(False)
        before, start, target = self.ids
        texts = [
            (before + self.tokenizer(text)["input_ids"] + target, BEFORE + text + TARGET) for text in found.strings
        ]
        losses = [self.loss(before + start + target), *found.losses]
        return Run(np.minimum.accumulate(losses).tolist(), np.diff(times).tolist(), evaluated[1:], texts)

    def loss(self, ids: list[int]) -> float:
        """Return the mean cross-entropy of the target."""
        count = len(self.ids[2])
        with torch.no_grad():
            logits = self.model(torch.tensor([ids])).logits[0, -count - 1 : -1]
        return float(torch.nn.functional.cross_entropy(logits, torch.tensor(ids[-count:])))


def times(question: Question, candidates: int, steps: int, rounds: int) -> dict[str, Any]:
    """Return the processor time of the steps of both tools, which take turns; the first step of a run does not count."""
    tools: dict[str, Callable[[int], Run]] = {
        "embgrad": lambda seed: question.embgrad(steps + 1, candidates, seed),
        "nanogcg": lambda seed: question.nanogcg(steps + 1, candidates, seed),
        "nanogcg, batch_size=64": lambda seed: question.nanogcg(steps + 1, candidates, seed, 64),
    }
    question.draw(0)
    seconds: dict[str, list[float]] = {name: [] for name in tools}
    evaluated: dict[str, list[int]] = {name: [] for name in tools}
    for seed in range(rounds):
        for name, run in tools.items():
            done = run(seed)
            seconds[name] += done.seconds[1:]
            evaluated[name] += done.evaluated[1:]
            print(name, done.seconds, done.evaluated, file=sys.stderr, flush=True)
    return {
        "candidates": candidates,
        "seconds": seconds,
        "evaluated": evaluated,
        "median": {name: float(np.median(values)) for name, values in seconds.items()},
        "each": {
            name: float(np.sum(values) / np.sum(evaluated[name])) for name, values in seconds.items()
        },  # for each text that was evaluated
    }


def losses(question: Question, candidates: int, steps: int, seeds: int) -> list[dict[str, Any]]:
    """Return the losses of both tools after the steps, by seed, of the weights too, and the shares of stable texts."""
    rows = []
    for seed in range(seeds):
        question.draw(seed)
        row: dict[str, Any] = {"seed": seed, "candidates": candidates}
        for name, run in (("embgrad", question.embgrad), ("nanogcg", question.nanogcg)):
            done = run(steps, candidates, seed)
            row[name] = {
                "loss": done.losses[-1],
                "course": done.losses[:: max(1, steps // 10)],
                "recomputed": min(question.loss(ids) for ids, _ in done.texts),
                "stable": done.stable(question.tokenizer),
                "evaluated": int(np.sum(done.evaluated)),
                "seconds": float(np.sum(done.seconds)),
            }
            print(seed, name, row[name], file=sys.stderr, flush=True)
        rows.append(row)
    return rows


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python tests/benchmarks/search.py", description=__doc__)
    parser.add_argument("what", choices=("times", "losses"))
    parser.add_argument("output", type=Path)
    parser.add_argument("--candidates", type=int, default=CANDIDATES)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=1, help="for times the number of rounds")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--dim", type=int, default=768)
    options = parser.parse_args(arguments)
    question = Question(options.output.parent, options.layers, options.dim)
    measure: Any = times if options.what == "times" else losses
    figures = measure(question, options.candidates, options.steps, options.seeds)
    versions = {name: version(name) for name in ("embgrad", "nanogcg", "torch", "transformers")}
    size = {"layers": options.layers, "dim": options.dim}
    options.output.write_text(
        json.dumps({"versions": versions, **size, "figures": figures}, indent=1), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
