"""The options that several commands share, each defined and explained once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer
import typer.core

from embgrad.cli.errors import UsageError

__all__ = [
    "SEVERAL_FRAMEWORKS",
    "Against",
    "AsJson",
    "At",
    "BatchSize",
    "Call",
    "Column",
    "Command",
    "Debug",
    "File",
    "Framework",
    "Frameworks",
    "Give",
    "Ids",
    "Ignore",
    "Labels",
    "MaxLength",
    "Model",
    "ObjectiveText",
    "Output",
    "Pads",
    "Pair",
    "Pairs",
    "Prefix",
    "Ray",
    "TextOption",
    "Tokenizer",
    "Tolerance",
    "Training",
    "Workers",
    "pairs_from",
]

SEVERAL_FRAMEWORKS = "torch,tensorflow,gluon,jax,keras"

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="MODEL",
        help="A checkpoint folder in Hugging Face's format; a TensorFlow SavedModel folder; or your own model as "
        "path/to/file.py:name or module:name, where the name is a model or a function that builds one.",
    ),
]
Framework = Annotated[
    str | None,
    typer.Option(
        "--framework",
        metavar="NAME",
        help="torch, tensorflow, gluon, jax, keras (Keras 3 on the backend that KERAS_BACKEND names), or another backend's name. "
        "Default: the first that is installed.",
    ),
]
Frameworks = Annotated[
    str | None,
    typer.Option(
        "--frameworks",
        metavar="NAMES",
        help=f"Frameworks to build the model in, such as {SEVERAL_FRAMEWORKS}; each is compared with the first.",
    ),
]
Against = Annotated[
    str | None,
    typer.Option("--against", metavar="MODEL", help="Another model, spelled as --model, to compare with --model."),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore",
        metavar="PATTERN",
        help="A pattern of weights of a BERT's head to ignore, such as 'cls.*'; only the encoder is loaded. May be repeated.",
    ),
]
Call = Annotated[
    str | None,
    typer.Option("--call", metavar="NAME", help="Your function (model, inputs) -> outputs, as path/to/file.py:name."),
]
TextOption = Annotated[list[str] | None, typer.Option("--text", "-t", metavar="TEXT", help="A text. May be repeated.")]
Pair = Annotated[
    list[str] | None,
    typer.Option(
        "--pair",
        metavar="A B",
        help="A pair of texts, as two arguments. May be repeated. Pairs come after the texts of --text.",
    ),
]
File = Annotated[
    str | None,
    typer.Option(
        "--file",
        "-f",
        metavar="FILE",
        help="A UTF-8 file with one text per line; blank lines are skipped. '-' is stdin, which is also read if texts are "
        "piped in and no other option gives any.",
    ),
]
Pairs = Annotated[bool, typer.Option("--pairs", help="Each line of the file is a pair of texts, separated by a TAB.")]
Ids = Annotated[
    str | None,
    typer.Option(
        "--ids",
        metavar="FILE",
        help="A JSON file of token ids, in place of texts: a list of lists, or an object with 'ids', 'mask' and 'types'.",
    ),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        "--tokenizer",
        metavar="TOKENIZER",
        help="A folder, a tokenizer.json, a vocab.txt, or your own as path/to/file.py:name. Default: the model's folder.",
    ),
]
MaxLength = Annotated[
    int | None,
    typer.Option(
        "--max-length", metavar="N", help="Truncate examples to N tokens; a warning reports how much was cut off."
    ),
]
ObjectiveText = Annotated[
    str | None,
    typer.Option(
        "--objective",
        metavar="OBJECTIVE",
        help='The objective, in Python syntax: Sum(output="pooled"), Logit(1), Margin(1, 0), CrossEntropy([0, 1]), '
        "Projection([0.5, 2], output=\"sequence\", position=0). Default: the sum of 'pooled', else of the logits or only output.",
    ),
]
Labels = Annotated[
    str | None,
    typer.Option(
        "--labels",
        metavar="LABELS",
        help="The labels of a cross-entropy, one per example: 0,1,1 or a file of them. Implies --objective CrossEntropy.",
    ),
]
At = Annotated[
    list[str] | None,
    typer.Option(
        "--at",
        metavar="POINT",
        help="The point: word (the default), embeddings, layer.0, layer.-1, … or a path. May be repeated.",
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option("--batch-size", metavar="N", help="Run at most N examples at once; the result is still one."),
]
Training = Annotated[bool, typer.Option("--training", help="Run the model in training mode, with dropout.")]
Pads = Annotated[
    str, typer.Option("--pads", metavar="keep|zero", help="Keep the gradients at padding, or set them to zero.")
]
Tolerance = Annotated[
    float | None,
    typer.Option(
        "--tolerance",
        metavar="X",
        help="The largest relative L2 difference of gradients that agree. Default: what rounding explains, by dtype and depth.",
    ),
]
Ray = Annotated[
    bool,
    typer.Option(
        "--ray",
        help="Run on Ray, at RAY_ADDRESS or else on this machine. --file is then Parquet, JSON lines or texts, and --labels and "
        "--ids name columns.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", metavar="N", help="With --ray, the number of processes that hold the model. Default: 2."),
]
Column = Annotated[
    str | None, typer.Option("--column", metavar="NAME", help="With --ray, the column of the texts. Default: text.")
]
Give = Annotated[
    str | None,
    typer.Option(
        "--give",
        metavar="saliency|tables",
        help="With --ray, what to write: the saliency of each position (default), or each row's table gradient.",
    ),
]
Prefix = Annotated[
    str | None,
    typer.Option(
        "--prefix",
        metavar="TEXT",
        help="With --ray, a prefix for the names of the new columns, in case the rows already have columns of these names.",
    ),
]
Output = Annotated[
    str | None,
    typer.Option("--output", "-o", metavar="FILE", help="The safetensors file to write, for embgrad.load."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show errors with their traceback, and the frameworks' warnings.")]


class Command(typer.core.TyperCommand):  # type: ignore[misc]  # typer is not installed where types are checked
    """A command whose option --pair takes two arguments and may be repeated."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, with each `--pair A B` joined to one argument."""
        rest: list[str] = super().parse_args(ctx, _join_pairs(args))
        return rest


def pairs_from(values: Sequence[str] | None) -> list[tuple[str, str]]:
    """Return the pairs of --pair, which `Command` has joined as JSON."""
    return [(pair[0], pair[1]) for pair in map(json.loads, values or ())]


def _join_pairs(args: Sequence[str]) -> list[str]:
    joined: list[str] = []
    rest = list(args)
    while rest:
        arg = rest.pop(0)
        if arg == "--":
            return [*joined, arg, *rest]
        if arg != "--pair" and not arg.startswith("--pair="):
            joined.append(arg)
            continue
        pair = [arg.removeprefix("--pair=")] if arg != "--pair" else []
        while rest and len(pair) < 2:
            pair.append(rest.pop(0))
        if len(pair) < 2:
            raise UsageError(
                f"--pair has {len(pair)} text{'s' if not pair else ''}: expected two, as --pair 'A man plays.' 'A song is heard.'"
            )
        joined.append("--pair=" + json.dumps(pair))
    return joined
