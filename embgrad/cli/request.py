"""The request of a command: its examples and options, and the call of `embgrad.gradients`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from embgrad.cli.command import pairs_from
from embgrad.cli.describe import Results
from embgrad.cli.options import GradientRequest, Inputs, Models
from embgrad.cli.run import own_process
from embgrad.cli.terminal import Terminal
from embgrad.common.options import count_or_none
from embgrad.engine.gradients import gradients
from embgrad.errors import OutputError
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.encode import encode
from embgrad.loading.errors import UsageError
from embgrad.loading.models import Loaded, expect_models, load_model
from embgrad.loading.texts import ids_from, read_texts
from embgrad.loading.tokenizer import tokenizer_from, tokenizer_of
from embgrad.objectives.objectives import Objective, Sum

__all__ = [
    "batch_from",
    "compute",
    "load_with_batch",
    "note_default",
    "warn_truncated",
    "with_objective",
]

T = TypeVar("T")


def batch_from(inputs: Inputs, models: Sequence[str], terminal: Terminal, request: GradientRequest) -> TokenBatch:
    """Return the batch for all models of a command; no model needs to be loaded.

    Args:
        models: the models as the user wrote them; without --tokenizer the first that is a folder provides the tokenizer.
    """
    return _batch_and_tokenizer(inputs, models, terminal, request)[0]


def _batch_and_tokenizer(
    inputs: Inputs, models: Sequence[str], terminal: Terminal, request: GradientRequest
) -> tuple[TokenBatch, Any]:
    """Return the batch, and the tokenizer of its texts; None for ids."""
    tokenizer = None
    if inputs.ids is not None:
        batch = _ids(inputs, inputs.ids, terminal)
    else:
        texts = read_texts(inputs.text or (), pairs_from(inputs.pair), inputs.file, inputs.pairs, terminal.note)
        count_or_none(inputs.max_length, "max_length")
        tokenizer = _tokenizer(inputs, models)
        batch = encode(texts, tokenizer, max_length=inputs.max_length)
        cut = batch.truncated
        warn_truncated(int(cut.sum()), int((cut > 0).sum()), len(batch), batch.shape[1], terminal)
    if request.parsed is not None:
        request.parsed.take(slice(None), len(batch))
    return batch, tokenizer


def _ids(inputs: Inputs, file: str, terminal: Terminal) -> TokenBatch:
    """Return the batch of a file of ids; raise if an option for texts is given."""
    for name in ("text", "pair", "file", "pairs", "tokenizer", "max_length"):
        if getattr(inputs, name):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"--ids gives the examples as ids, and {option} is for texts: pass only one")
    return ids_from(file, terminal.note)


def warn_truncated(tokens: int, cut: int, examples: int, most: int, terminal: Terminal) -> None:
    """Warn how many tokens were cut off, and from how many examples, if any were."""
    if tokens:
        terminal.warn(
            f"{tokens} tokens were cut off from {cut} of {examples} examples, which keep at most {most} tokens"
        )


def with_objective(wanted: Objective | None, run: Callable[[Objective], T]) -> tuple[Objective, T]:
    """Return the objective and the result of `run` for it.

    Args:
        wanted: the user's objective; None for the sum of the output `pooled`, or else of the logits or the only output.
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
    call = request.function()

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


def load_with_batch(
    models: Models, inputs: Inputs, request: GradientRequest, terminal: Terminal
) -> tuple[Loaded, TokenBatch, Any]:
    """Return a model, the batch of the inputs, and the tokenizer of texts, None for ids, after a check of all that is cheap."""
    model, ignore = models.single(), models.ignore or ()
    expect_models([(model, models.framework)], ignore, own_process=own_process())
    batch, tokenizer = _batch_and_tokenizer(inputs, [model], terminal, request)
    with terminal.busy(f"loading {model} …"):
        return load_model(model, models.framework, ignore), batch, tokenizer


def _tokenizer(inputs: Inputs, models: Sequence[str]) -> Any:
    """Return the tokenizer of --tokenizer, or of the first model that is a folder."""
    if inputs.tokenizer is not None:
        return tokenizer_from(inputs.tokenizer)
    folder = next((Path(model) for model in models if Path(model).is_dir()), None)
    if folder is None:
        raise UsageError(
            "texts need a tokenizer, and the model has no folder that holds one: name it with --tokenizer, or give --ids"
        )
    return tokenizer_of(folder)
