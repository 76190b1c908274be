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
from embgrad.cli.demo import minilm_folder

CLASS: Final = 1
STEPS: Final = 8


@dataclass(frozen=True)
class Rival:
    """One tool's call, and the call of embgrad's that answers the same.

    Attributes:
        tool: the distribution.
        call: what of it is called.
        theirs: the call; so is `ours`. Each gives its figures.
        by_hand: code by hand for the same, where there is any.
        note: what else is to be known.
        same: whether the figures are the same by definition.
    """

    tool: str
    call: str
    theirs: Callable[[], Any]
    ours: Callable[[], Any]
    by_hand: Callable[[], Any] | None = None
    note: str = ""
    same: bool = True


class Question:
    """A classifier with a random head, and a batch.

    Args:
        folder: of the BERT's checkpoint.
        examples: of the batch; so are `positions`.
    """

    def __init__(self, folder: str, examples: int, positions: int) -> None:
        torch.manual_seed(0)
        self.folder = folder
        self.model = BertForSequenceClassification.from_pretrained(folder, num_labels=2).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(minilm_folder(), model_max_length=positions)
        self.texts = ["good film " * (positions // 2 - 1)] * examples
        encoded = self.tokenizer(self.texts, return_tensors="np")
        self.batch = embgrad.TokenBatch(
            encoded["input_ids"], encoded["attention_mask"], encoded["token_type_ids"]
        )  # without padding
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
        found: np.ndarray = torch.autograd.grad(objective, kept)[0].numpy()
        return found


def captum(question: Question) -> Iterator[Rival]:
    """One gradient, and the integral over a path of them."""
    from captum.attr import LayerGradientXActivation, LayerIntegratedGradients

    ids, mask, types = question.inputs.values()
    table = question.model.bert.embeddings.word_embeddings
    one = LayerGradientXActivation(question.logits, table, multiply_by_inputs=False)
    path = LayerIntegratedGradients(question.logits, table)
    given: dict[str, Any] = {"target": CLASS, "additional_forward_args": (mask, types)}
    yield Rival(
        "captum",
        "LayerGradientXActivation",
        lambda: one.attribute(ids, **given).detach().numpy(),
        question.ours,
        question.by_hand,
        "without the multiplication by the rows",
    )
    for size, note in ((len(ids), f"internal_batch_size={len(ids)}"), (None, "as shipped, all steps at once")):
        yield Rival(
            "captum",
            f"LayerIntegratedGradients, {STEPS} steps",
            lambda size=size: (
                path.attribute(ids, torch.zeros_like(ids), n_steps=STEPS, internal_batch_size=size, **given)
                .detach()
                .numpy()
            ),
            lambda: integrated(question),
            note=f"{note}; ours is one call a step",
        )


def integrated(question: Question) -> np.ndarray:
    """Integrated gradients from the row of id 0 in as many calls of `gradients` as there are steps."""
    # As plain numbers, which leave arrays their float32; NumPy's own scalars are float64, and make the arrays that from NumPy 2.
    nodes, weights = (found.tolist() for found in np.polynomial.legendre.leggauss(STEPS))
    start = question.model.bert.embeddings.word_embeddings.weight[0].detach().numpy()
    total: np.ndarray | float = 0.0
    for node, weight in zip(nodes, weights, strict=True):
        place = (node + 1) / 2
        on_path = {"word": lambda rows, place=place: start + place * (rows - start)}
        found = embgrad.gradients(question.model, question.batch, embgrad.Logit(CLASS), override=on_path)
        total = total + weight / 2 * found.values
    return (found.activations - start) / place * total


def nnsight(question: Question) -> Iterator[Rival]:
    """Its trace, as its documentation has it, and with a model whose weights the user has frozen."""
    from nnsight import NNsight

    for frozen, note in ((False, "as documented"), (True, "the model frozen by the user")):
        # Of its own, since it replaces the functions of a model's modules for good.
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
    """`get_grad` on each text, which runs with dropout on: its figures are others."""
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
    """Its saliency, on a language model, which alone it takes: each text's gradient of one given token's logit."""
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
        found = wrapped.attribute(
            texts,
            [f"{text} music" for text in texts],
            attributed_fn="logit",
            show_progress=False,
            skip_special_tokens=True,
        )
        return np.stack([one.target_attributions[: ids.shape[1], 0].numpy() for one in found.sequence_attributions])

    def ours() -> np.ndarray:
        encoded = tokenizer(texts, return_tensors="np", add_special_tokens=False)
        batch = embgrad.TokenBatch(encoded["input_ids"], encoded["attention_mask"])
        return np.abs(embgrad.gradients(model, batch, embgrad.Logit(target, position=-1)).values)

    yield Rival("inseq", "saliency", theirs, ours, note="a random GPT-2 of 6 × 384, tokenised by both")


TOOLS: dict[str, Callable[[Question], Iterator[Rival]]] = {
    "captum": captum,
    "nnsight": nnsight,
    "textattack": textattack,
    "inseq": inseq,
}

#: Those that answer what some lines by hand answer, too.
WITH_CODE_BY_HAND: Final = ("captum", "nnsight")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python tests/benchmarks/rivals.py", description=__doc__)
    parser.add_argument(
        "what", choices=("times", "small", "peaks"), help="small: times of what code by hand does as well"
    )
    parser.add_argument("found", type=Path)
    parser.add_argument("--size", default="16x128")
    parser.add_argument("--model", default=str(minilm_folder()), help="a BERT checkpoint folder")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--tools", help="by default all; of those with code by hand captum and nnsight")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    examples, positions = map(int, options.size.split("x"))
    found = []
    tools = WITH_CODE_BY_HAND if options.what == "small" else tuple(TOOLS)
    for tool in options.tools.split(",") if options.tools else tools:
        for figures in _measured(tool, Question(options.model, examples, positions), options):
            found.append(figures)
            print(f"  {tool}: {figures['call']}", file=sys.stderr, flush=True)
    options.found.write_text(json.dumps(found), encoding="utf-8")


def _measured(tool: str, question: Question, options: Any) -> Iterator[dict[str, Any]]:
    """The figures of each of a tool's calls; where one fails, why."""
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
        except Exception as error:  # of a tool that cannot be imported or set up: told in the table
            yield {**named, "call": "", "note": "", "failed": _reason(error)}
            return
        if rival is None:
            return
        if options.what == "small" and rival.by_hand is None:
            continue
        about = {**named, "call": rival.call, "note": rival.note}
        try:
            yield {**about, **_figures(rival, options)}
        except Exception as error:  # the tool's own: told in the table
            yield {**about, "failed": _reason(error)}


def _figures(rival: Rival, options: Any) -> dict[str, Any]:
    functions = {"theirs": rival.theirs, "ours": rival.ours}
    if rival.by_hand is not None:
        functions["by hand"] = rival.by_hand
    theirs, ours = np.asarray(rival.theirs()), np.asarray(rival.ours())
    found: dict[str, Any] = {}
    if rival.same:
        found["distance"] = distance(theirs, ours)
    if options.what == "peaks":
        return {**found, "peaks": {name: min(peak_of(one) for _ in range(2)) for name, one in functions.items()}}
    return {**found, **in_turns(functions, options.seconds)}


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"


if __name__ == "__main__":
    main()
