"""Other tools on the same question, in one process with `embgrad.gradients`: time in turns, or peak memory, as JSON.

Runs in the environment of rivals.txt. The question is the gradient of a logit with respect to the word embeddings' rows.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import transformers
from measuring import distance, in_turns, peak_of  # by path, since some of these tools install a package named tests
from transformers import AutoTokenizer, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

import embgrad
from embgrad.loading.minilm import minilm_folder

CLASS: Final = 1
STEPS: Final = 8


@dataclass(frozen=True)
class Rival:
    """A tool's call, embgrad's equivalent call, and code by hand, if any.

    Attributes:
        same: True if the results are equal by definition.
    """

    tool: str
    call: str
    theirs: Callable[[], Any]
    ours: Callable[[], Any]
    by_hand: Callable[[], Any] | None = None
    note: str = ""
    same: bool = True


class Question:
    def __init__(self, folder: str, examples: int, positions: int) -> None:
        torch.manual_seed(0)
        self.folder = folder
        self.model = BertForSequenceClassification.from_pretrained(folder, num_labels=2).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(minilm_folder(), model_max_length=positions)
        self.texts = ["good film " * (positions // 2 - 1)] * examples
        encoded = self.tokenizer(self.texts, return_tensors="np")
        # There is no padding.
        self.batch = embgrad.TokenBatch(encoded["input_ids"], encoded["attention_mask"], encoded["token_type_ids"])
        self.inputs = {name: torch.tensor(value) for name, value in self.batch.to_huggingface().items()}

    def logits(self, ids: Any, mask: Any, types: Any) -> Any:
        return self.model(ids, mask, types).logits

    def ours(self) -> np.ndarray:
        return embgrad.gradients(self.model, self.batch, embgrad.Logit(CLASS)).values

    def by_hand(self) -> np.ndarray:
        kept: list[Any] = []
        table = self.model.bert.embeddings.word_embeddings

        def hook(module: Any, arguments: Any, output: Any) -> Any:
            kept.append(output.detach().requires_grad_())
            return kept[0]

        handle = table.register_forward_hook(hook)
        try:
            objective = self.model(**self.inputs).logits[:, CLASS].sum()
        finally:
            handle.remove()
        return np.asarray(torch.autograd.grad(objective, kept)[0].numpy())


def captum(question: Question) -> Iterator[Rival]:
    from captum.attr import LayerGradientXActivation, LayerIntegratedGradients

    ids, mask, types = question.inputs.values()
    table = question.model.bert.embeddings.word_embeddings
    gradient = LayerGradientXActivation(question.logits, table, multiply_by_inputs=False)
    path = LayerIntegratedGradients(question.logits, table)
    options: dict[str, Any] = {"target": CLASS, "additional_forward_args": (mask, types)}
    yield Rival(
        "captum",
        "LayerGradientXActivation",
        lambda: gradient.attribute(ids, **options).detach().numpy(),
        question.ours,
        question.by_hand,
        "without the multiplication by the rows",
    )
    for size, note in ((len(ids), f"internal_batch_size={len(ids)}"), (None, "as shipped, all steps at once")):
        yield Rival(
            "captum",
            f"LayerIntegratedGradients, {STEPS} steps",
            lambda size=size: (
                path.attribute(ids, torch.zeros_like(ids), n_steps=STEPS, internal_batch_size=size, **options)
                .detach()
                .numpy()
            ),
            lambda: integrated(question),
            note=note,
        )


def integrated(question: Question) -> np.ndarray:
    method = embgrad.methods.IntegratedGradients(STEPS, baseline=0)
    return np.asarray(embgrad.attribute(question.model, question.batch, embgrad.Logit(CLASS), method).values)


def nnsight(question: Question) -> Iterator[Rival]:
    """Yield its trace, as documented, and with frozen weights."""
    from nnsight import NNsight

    for frozen, note in ((False, "as documented"), (True, "the model frozen by the user")):
        # A copy, since it replaces the functions of a model's modules permanently.
        model = copy.deepcopy(question.model).requires_grad_(not frozen)
        wrapped = NNsight(model)

        def theirs(wrapped: Any = wrapped, model: Any = model) -> np.ndarray:
            with wrapped.trace(**question.inputs):
                rows = wrapped.bert.embeddings.word_embeddings.output
                if not rows.requires_grad:
                    rows.requires_grad_()
                objective = wrapped.output.logits[:, CLASS].sum()
                with objective.backward():
                    gradient = rows.grad.save()
            model.zero_grad(set_to_none=True)
            return np.asarray(gradient.detach().numpy())

        yield Rival("nnsight", "trace", theirs, question.ours, question.by_hand, note)


def textattack(question: Question) -> Iterator[Rival]:
    """Yield `get_grad` on each text, which runs with dropout, so that its values differ."""
    with tempfile.TemporaryDirectory() as folder:
        words = Path(folder) / "corpora" / "stopwords" / "english"
        words.parent.mkdir(parents=True)
        words.write_text("the\n", encoding="utf-8")
        os.environ["NLTK_DATA"], os.environ["TA_CACHE_DIR"] = folder, folder  # its import reads a list of stop words
        from textattack.models.wrappers import HuggingFaceModelWrapper

    torch.manual_seed(0)
    model = BertForSequenceClassification.from_pretrained(question.folder, num_labels=2).eval()
    wrapper = HuggingFaceModelWrapper(model, question.tokenizer)

    def ours() -> np.ndarray:
        batch = embgrad.encode(question.texts, question.tokenizer)
        with torch.no_grad():
            labels = model(**{name: torch.tensor(value) for name, value in batch.to_huggingface().items()}).logits
        return embgrad.gradients(model, batch, embgrad.CrossEntropy(labels.argmax(1).numpy())).values

    yield Rival(
        "textattack",
        f"get_grad × {len(question.texts)}",
        lambda: np.stack([wrapper.get_grad(text)["gradient"] for text in question.texts]),
        ours,
        note="texts of the batch's length, tokenised by both; it runs with dropout on, ours with the prediction's pass",
        same=False,
    )


def inseq(question: Question) -> Iterator[Rival]:
    """Yield its saliency of one token's logit, on a language model, since it takes no other."""
    import inseq as tool

    torch.manual_seed(0)
    sizes = {"n_layer": 6, "n_embd": 384, "n_head": 12, "vocab_size": len(question.tokenizer)}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=101, eos_token_id=102)).eval()
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder(), pad_token="[PAD]")
    tokenizer.bos_token, tokenizer.eos_token = "[CLS]", "[SEP]"
    wrapped = tool.load_model(model, "saliency", tokenizer=tokenizer, device="cpu")
    texts = [text.strip() for text in question.texts]
    ids = tokenizer(texts, return_tensors="np", add_special_tokens=False)["input_ids"]
    target = tokenizer("music", add_special_tokens=False)["input_ids"][0]

    def theirs() -> np.ndarray:
        output = wrapped.attribute(
            texts,
            [f"{text} music" for text in texts],
            attributed_fn="logit",
            show_progress=False,
            skip_special_tokens=True,
        )
        return np.stack([text.target_attributions[: ids.shape[1], 0].numpy() for text in output.sequence_attributions])

    def ours() -> np.ndarray:
        encoded = tokenizer(texts, return_tensors="np", add_special_tokens=False)
        batch = embgrad.TokenBatch(encoded["input_ids"], encoded["attention_mask"])
        return np.abs(embgrad.gradients(model, batch, embgrad.Logit(target, position=-1)).values)

    yield Rival("inseq", "saliency", theirs, ours, note="a random GPT-2 of 6 × 384, tokenised by both")


TOOLS: dict[str, Callable[[Question], Iterator[Rival]]] = {
    "captum": captum, "nnsight": nnsight, "textattack": textattack, "inseq": inseq,
}  # fmt: skip

#: The tools with equivalent code by hand.
WITH_CODE_BY_HAND: Final = ("captum", "nnsight")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python tests/benchmarks/rivals.py", description=__doc__)
    parser.add_argument(
        "what", choices=("times", "small", "peaks"), help="small: times of what code by hand does as well"
    )
    parser.add_argument("output", type=Path)
    parser.add_argument("--size", default="16x128")
    parser.add_argument("--model", default=str(minilm_folder()), help="a BERT checkpoint folder")
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    examples, positions = map(int, options.size.split("x"))
    rows = []
    for tool in WITH_CODE_BY_HAND if options.what == "small" else TOOLS:
        for figures in _measured(tool, Question(options.model, examples, positions), options):
            rows.append(figures)
            print(f"  {tool}: {figures['call']}", file=sys.stderr, flush=True)
    options.output.write_text(json.dumps(rows), encoding="utf-8")


def _measured(tool: str, question: Question, options: Any) -> Iterator[dict[str, Any]]:
    """Yield the figures of each of a tool's calls, or the reason of its failure."""
    named = {
        "tool": tool,
        "version": version(tool),
        "examples": len(question.texts),
        "positions": question.batch.shape[1],
    }
    rivals = TOOLS[tool](question)
    while True:
        try:
            rival = next(rivals, None)
        except Exception as error:  # the tool cannot be imported or set up
            yield {**named, "call": "", "note": "", "failed": _reason(error)}
            return
        if rival is None:
            return
        if options.what == "small" and rival.by_hand is None:
            continue
        about = {**named, "call": rival.call, "note": rival.note}
        try:
            yield {**about, **_figures(rival, options)}
        except Exception as error:
            yield {**about, "failed": _reason(error)}


def _figures(rival: Rival, options: Any) -> dict[str, Any]:
    functions = {"theirs": rival.theirs, "ours": rival.ours}
    if rival.by_hand is not None:
        functions["by hand"] = rival.by_hand
    theirs, ours = np.asarray(rival.theirs()), np.asarray(rival.ours())
    equal = {"distance": distance(theirs, ours)} if rival.same else {}
    if options.what == "peaks":
        return {
            **equal,
            "peaks": {name: min(peak_of(function) for _ in range(2)) for name, function in functions.items()},
        }
    return {**equal, **in_turns(functions, options.seconds)}


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"


if __name__ == "__main__":
    main()
