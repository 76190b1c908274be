"""Attribution of output tokens beside captum, inseq and a call for each token, in one process: figures, times and peaks.

Runs in the environment of rivals.txt: with `--long` on a decoder of SmolLM2's shape, 32 output tokens after 480 others.
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
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import embgrad
from embgrad.common.memory_meter import process_meter

PROMPT, TARGETS = 32, 32
LONG_PROMPT: Final = 480


def gpt2() -> Any:
    """Return a GPT-2 of six layers."""
    return GPT2LMHeadModel(GPT2Config(n_layer=6, n_embd=384, n_head=6, bos_token_id=50256))


def smollm2() -> Any:
    """Return a Llama of the shape of SmolLM2-135M."""
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True}
    shape = {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
    return LlamaForCausalLM(LlamaConfig(**shape, **heads, max_position_embeddings=8192))


def tokenizer(vocab: int) -> Any:
    """Return a tokenizer whose tokens are words of one id each."""
    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(vocab)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    end = f"w{vocab - 1}"
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token=end, pad_token=end, unk_token="w0")


class Question:
    """A language model with random weights, a prompt and its continuation."""

    def __init__(self, make: Callable[[], Any], prompt: int, targets: int) -> None:
        torch.manual_seed(0)
        self.model = make().eval()
        vocab = self.model.config.vocab_size
        self.model.generation_config.eos_token_id = vocab - 1
        self.tokenizer = tokenizer(vocab)
        self.prompt, self.count = prompt, targets
        self.ids = np.random.default_rng(0).integers(1, vocab - 200, (1, prompt + targets))
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
            LayerGradientXActivation(self.model, self.model.get_input_embeddings()), self.tokenizer
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


def timed(task: Callable[[], Any]) -> tuple[float, float, Any]:
    """Return the processor seconds of a call, which other programs disturb little, the MiB of its peak, and its result."""
    meter = process_meter()
    meter.restart()
    before, _ = meter.read()
    start = time.process_time()
    result = task()
    return time.process_time() - start, (meter.read()[1] - before) / 2**20, result


def measured(question: Question, rounds: int, *, calls: bool) -> dict[str, Any]:
    """Return the distances of the figures, and the least times and the peaks in turns."""
    tasks = {
        "input × gradient": lambda: question.ours("input_x_gradient"),
        "captum, input × gradient": question.captum,
        "saliency": lambda: question.ours("saliency"),
        "inseq, saliency": question.inseq,
        **({"a call for each token": question.calls} if calls else {}),
    }
    done = {name: [timed(task) for _ in range(rounds)] for name, task in tasks.items()}
    results = {name: runs[0][2] for name, runs in done.items()}
    product, saliency = results["input × gradient"], results["saliency"]
    distances = {
        "captum, input × gradient": distance(
            product.scores[0][:, : question.prompt], results["captum, input × gradient"]
        ),
        # The gradient of a probability is that of its logarithm times the probability.
        "inseq, saliency": distance(
            saliency.scores[0] * np.exp(saliency.objective[0])[:, None], results["inseq, saliency"]
        ),
    }
    if calls:
        distances["a call for each token"] = distance(saliency.scores[0], results["a call for each token"])
    seconds = {name: min(run[0] for run in runs) for name, runs in done.items()}
    pairs = {"captum, input × gradient": "input × gradient", "inseq, saliency": "saliency"}
    return {
        "versions": {name: version(name) for name in ("embgrad", "captum", "inseq", "torch", "transformers")},
        "distances": distances,
        "seconds": seconds,
        "share of the time": {rival: seconds[own] / seconds[rival] for rival, own in pairs.items()},
        "peak, MiB": {name: max(run[1] for run in runs) for name, runs in done.items()},
    }


def main() -> None:
    """Measure, print and store the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--long", action="store_true", help="a decoder of SmolLM2's shape, and 512 tokens")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    question = Question(smollm2, LONG_PROMPT, TARGETS) if arguments.long else Question(gpt2, PROMPT, TARGETS)
    figures = measured(question, arguments.rounds, calls=not arguments.long)
    text = json.dumps(figures, indent=1, ensure_ascii=False)
    sys.stdout.write(text + "\n")
    if arguments.out is not None:
        arguments.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
