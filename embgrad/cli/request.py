"""The request of a command: its examples and options, and the call of `embgrad.gradients`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from embgrad.cli.describe import Results
from embgrad.cli.errors import UsageError
from embgrad.cli.models import Loaded, expect_models, load_model
from embgrad.cli.objectives import labels_from, parsed_objective
from embgrad.cli.run import own_process
from embgrad.cli.terminal import Terminal
from embgrad.cli.texts import ids_from, read_texts
from embgrad.cli.tokenizer import tokenizer_from, tokenizer_of
from embgrad.cli.user_objects import expect_function, imported
from embgrad.common.options import count_or_none
from embgrad.engine.gradients import gradients
from embgrad.engine.options import expect_pads
from embgrad.errors import OutputError
from embgrad.forward.points import WORD
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.encode import encode
from embgrad.objectives.objectives import Objective, Sum

__all__ = [
    "GradientRequest",
    "Inputs",
    "batch_from",
    "call_from",
    "compute",
    "loaded_with_batch",
    "note_default",
    "tokenizer_for",
    "warn_truncated",
    "with_objective",
]

T = TypeVar("T")


@dataclass(frozen=True)
class Inputs:
    """The sources of a command's examples; the fields are the options of the same names."""

    text: Sequence[str] = ()
    pair: Sequence[tuple[str, str]] = ()
    file: str | None = None
    pairs: bool = False
    ids: str | None = None
    tokenizer: str | None = None
    max_length: int | None = None


@dataclass(frozen=True)
class GradientRequest:
    """The objective, the points and the other options of the gradients; the fields are the options of the same names."""

    objective: str | None = None
    labels: str | None = None
    at: Sequence[str] = ()
    batch_size: int | None = None
    training: bool = False
    pads: str = "keep"
    check: bool = False
    split: bool = False
    call: str | None = None
    parsed: Objective | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parsed", parsed_objective(self.objective, labels_from(self.labels)))
        expect_function(self.call, "--call")
        count_or_none(self.batch_size, "batch_size")
        expect_pads(self.pads)

    @property
    def points(self) -> str | list[str]:
        """The argument `at` of `embgrad.gradients`."""
        return list(self.at) if len(self.at) > 1 else self.at[0] if self.at else WORD


def batch_from(
    inputs: Inputs, models: Sequence[str], terminal: Terminal, request: GradientRequest | None = None
) -> TokenBatch:
    """Return the batch for all models of a command; no model needs to be loaded.

    Args:
        inputs: the sources of the examples.
        models: the models as the user wrote them; without --tokenizer the first that is a folder provides the tokenizer.
        terminal: where skipped lines and cut tokens are reported.
        request: the request; its number of labels is checked against the examples.
    """
    batch = _batch(inputs, models, terminal)
    if request is not None and request.parsed is not None:
        request.parsed.take(slice(None), len(batch))
    return batch


def _batch(inputs: Inputs, models: Sequence[str], terminal: Terminal) -> TokenBatch:
    if inputs.ids is not None:
        text_options = {
            "--text": inputs.text,
            "--pair": inputs.pair,
            "--file": inputs.file,
            "--pairs": inputs.pairs,
            "--tokenizer": inputs.tokenizer,
            "--max-length": inputs.max_length,
        }
        passed = [name for name, value in text_options.items() if value]
        if passed:
            raise UsageError(f"--ids gives the examples as ids, and {passed[0]} is for texts: pass only one")
        return ids_from(inputs.ids, terminal.note)
    texts = read_texts(inputs.text, inputs.pair, inputs.file, inputs.pairs, terminal.note)
    count_or_none(inputs.max_length, "max_length")
    batch = encode(texts, tokenizer_for(inputs, models), max_length=inputs.max_length)
    warn_truncated(int(batch.truncated.sum()), int((batch.truncated > 0).sum()), len(batch), batch.shape[1], terminal)
    return batch


def warn_truncated(tokens: int, cut: int, examples: int, most: int, terminal: Terminal) -> None:
    """Warn how many tokens were cut off, and from how many examples, if any were."""
    if tokens:
        terminal.warn(
            f"{tokens} tokens were cut off from {cut} of {examples} examples, which keep at most {most} tokens"
        )


def call_from(request: GradientRequest) -> Callable[[Any, Any], Any] | None:
    """Return the function of --call, which calls the model, or None."""
    return None if request.call is None else imported(request.call)


def with_objective(wanted: Objective | None, run: Callable[[Objective], T]) -> tuple[Objective, T]:
    """Return the objective and the result of `run` for it.

    Args:
        wanted: the user's objective; None for the sum of the output `pooled`, or else of the logits or the only output.
        run: the function of the objective that computes the result.
    """
    if wanted is not None:
        return wanted, run(wanted)
    objective: Objective = Sum(output="pooled")
    try:
        return objective, run(objective)
    except OutputError:
        objective = Sum()
    return objective, run(objective)


def note_default(request: GradientRequest, used: Objective | None, terminal: Terminal) -> None:
    """Print the default objective if the user chose none."""
    if request.parsed is None:
        terminal.note(f"the objective is {used!r} by default; choose another with --objective")


def compute(
    loaded: Loaded, batch: TokenBatch, request: GradientRequest, terminal: Terminal, wanted: Objective | None = None
) -> tuple[Objective, Results]:
    """Compute the gradients of one model for `wanted`, or else the request's objective; return the objective and results."""
    many = request.batch_size is not None and request.batch_size < len(batch)
    call = call_from(request)

    def run(objective: Objective) -> Results:
        label = f"gradients in {loaded.framework}"
        with terminal.progress(label) if many else terminal.busy(f"{label} …") as progress:
            results: Results = gradients(
                loaded.model,
                batch,
                objective,
                at=request.points,
                call=call,
                training=request.training,
                pads=request.pads,
                split=request.split,
                check=request.check,
                batch_size=request.batch_size,
                progress=progress,
            )
        return results

    return with_objective(wanted or request.parsed, run)


def loaded_with_batch(
    model: str,
    framework: str | None,
    ignore: Sequence[str],
    inputs: Inputs,
    terminal: Terminal,
    request: GradientRequest,
) -> tuple[Loaded, TokenBatch, Any]:
    """Return a model, the batch of the inputs, and the tokenizer of texts, None for ids, after a check of all that is cheap.

    Raises:
        UsageError: see `expect_models` and `batch_from`.
    """
    expect_models([(model, framework)], ignore, own_process=own_process())
    batch = batch_from(inputs, [model], terminal, request)
    tokenizer = None if inputs.ids is not None else tokenizer_for(inputs, [model])
    with terminal.busy(f"loading {model} …"):
        return load_model(model, framework, ignore), batch, tokenizer


def tokenizer_for(inputs: Inputs, models: Sequence[str]) -> Any:
    """Return the tokenizer of --tokenizer, or of the first model that is a folder."""
    if inputs.tokenizer is not None:
        return tokenizer_from(inputs.tokenizer)
    folder = next((Path(model) for model in models if Path(model).is_dir()), None)
    if folder is None:
        raise UsageError(
            "texts need a tokenizer, and the model has no folder that holds one: name it with --tokenizer, or give --ids"
        )
    return tokenizer_of(folder)
