"""Attribution of output tokens beside captum, inseq and a call for each token, in one process: figures, times and peaks.

Runs in the environment of rivals.txt.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import inseq
import numpy as np
import torch
import transformers
from captum.attr import LayerGradientXActivation, LLMGradientAttribution, TextTokenInput
from measuring import distance  # by path, since some of the rivals install a package named tests
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

import embgrad

VOCAB: Final = 50257
PROMPT, TARGETS = 32, 32


def tokenizer() -> Any:
    """Return a tokenizer whose tokens are words of one id each."""
    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(VOCAB)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w50256", pad_token="w50256", unk_token="w0")


class Question:
    """A GPT-2 of six layers with random weights, a prompt and its continuation."""

    def __init__(self, prompt: int, targets: int) -> None:
        torch.manual_seed(0)
        self.model = GPT2LMHeadModel(GPT2Config(n_layer=6, n_embd=384, n_head=6, bos_token_id=50256)).eval()
        self.model.generation_config.eos_token_id = 50256
        self.tokenizer = tokenizer()
        self.prompt, self.count = prompt, targets
        self.ids = np.random.default_rng(0).integers(1, 50000, (1, prompt + targets))
        self.words = [f"w{number}" for number in self.ids[0]]

    def ours(self, method: str) -> embgrad.results.TokenAttribution:
        return embgrad.attribute_tokens(self.model, self.ids, slice(self.prompt, None), method=method)

    def calls(self) -> np.ndarray:
        """Return the saliency by a call of `gradients` for each output token."""
        rows = []
        for position in range(self.prompt, self.prompt + self.count):
            labels = np.where(np.arange(self.ids.shape[1]) == position, self.ids, -100)
            result = embgrad.gradients(self.model, self.ids, embgrad.LogProbability(labels))
            rows.append(result.saliency("norm")[0])
        return np.stack(rows)

    def captum(self) -> np.ndarray:
        """Return input × gradient of the prompt, (output, position)."""
        attributing = LLMGradientAttribution(
            LayerGradientXActivation(self.model, self.model.transformer.wte), self.tokenizer
        )
        prompt, target = " ".join(self.words[: self.prompt]), " ".join(self.words[self.prompt :])
        made = attributing.attribute(TextTokenInput(prompt, self.tokenizer), target=target)
        return np.asarray(made.token_attr.detach())

    def inseq(self) -> np.ndarray:
        """Return the saliency of the probability, the L2 norm, (output, position)."""
        with contextlib.redirect_stdout(io.StringIO()):
            attributing = inseq.load_model(self.model, "saliency", tokenizer=self.tokenizer)
            made = attributing.attribute(
                " ".join(self.words[: self.prompt]),
                " ".join(self.words),
                show_progress=False,
                pretty_progress=False,
            )
        return np.nan_to_num(made.sequence_attributions[0].target_attributions.norm(dim=-1)).T


def timed(task: Callable[[], Any]) -> float:
    """Return the processor seconds of a call, which other programs disturb little."""
    start = time.process_time()
    task()
    return time.process_time() - start


def measured(rounds: int) -> dict[str, Any]:
    """Return the distances of the figures, and the least times in turns."""
    question = Question(PROMPT, TARGETS)
    product, saliency = question.ours("input_x_gradient"), question.ours("saliency")
    distances = {
        "captum, input × gradient": distance(product.scores[0][:, :PROMPT], question.captum()),
        # The gradient of a probability is that of its logarithm times the probability.
        "inseq, saliency": distance(saliency.scores[0] * np.exp(saliency.objective[0])[:, None], question.inseq()),
        "a call for each token": distance(saliency.scores[0], question.calls()),
    }
    tasks = {
        "input × gradient": lambda: question.ours("input_x_gradient"),
        "captum, input × gradient": question.captum,
        "saliency": lambda: question.ours("saliency"),
        "inseq, saliency": question.inseq,
        "a call for each token": question.calls,
    }
    times = {name: min(timed(task) for _ in range(rounds)) for name, task in tasks.items()}
    return {
        "versions": {name: version(name) for name in ("embgrad", "captum", "inseq", "torch", "transformers")},
        "distances": distances,
        "seconds": times,
    }


def main() -> None:
    """Measure, print and store the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    figures = measured(arguments.rounds)
    text = json.dumps(figures, indent=1, ensure_ascii=False)
    sys.stdout.write(text + "\n")
    if arguments.out is not None:
        arguments.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
