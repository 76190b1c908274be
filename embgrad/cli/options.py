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

MODEL, INPUT, WANTED, ANSWER = "The model", "The texts", "What is asked", "The answer"
SEVERAL_FRAMEWORKS = "torch,tensorflow,gluon"

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
        help="torch, tensorflow or gluon, or another backend's name. By default the first that is installed.",
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
        help="Weights of a BERT's head to leave aside, such as 'cls.*': the encoder alone is loaded. May be repeated.",
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
        "--pair", metavar="A B", help="A pair of texts, two arguments. May be repeated; pairs follow the texts."
    ),
]
File = Annotated[
    str | None,
    typer.Option(
        "--file",
        "-f",
        metavar="FILE",
        help="A file of texts, one a line, in UTF-8; blank lines are skipped. '-' is stdin, which is also read where texts are "
        "piped in and no other option names any.",
    ),
]
Pairs = Annotated[bool, typer.Option("--pairs", help="Each line of the file is a pair of texts, separated by a TAB.")]
Ids = Annotated[
    str | None,
    typer.Option(
        "--ids",
        metavar="FILE",
        help="Token ids in place of texts, as JSON: a list of lists, or an object with 'ids', 'mask' and 'types'.",
    ),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        "--tokenizer",
        metavar="PLACE",
        help="A folder, a tokenizer.json, a vocab.txt, or your own as path/to/file.py:name. By default the model's folder.",
    ),
]
MaxLength = Annotated[
    int | None,
    typer.Option("--max-length", metavar="N", help="Cut examples to so many tokens; what is cut off is said."),
]
ObjectiveText = Annotated[
    str | None,
    typer.Option(
        "--objective",
        metavar="OBJECTIVE",
        help='Spelled as in Python: Sum(output="pooled"), Logit(1), Margin(1, 0), CrossEntropy([0, 1]), '
        "Projection([0.5, 2], output=\"sequence\", position=0). By default the sum of 'pooled', or else of the only output.",
    ),
]
Labels = Annotated[
    str | None,
    typer.Option(
        "--labels",
        metavar="LABELS",
        help="The labels of a cross-entropy, one an example: 0,1,1 or a file of them. Without --objective it is CrossEntropy.",
    ),
]
At = Annotated[
    list[str] | None,
    typer.Option(
        "--at", metavar="POINT", help="word (the default), embeddings, layer.0, layer.-1, … or a path. May be repeated."
    ),
]
BatchSize = Annotated[
    int | None, typer.Option("--batch-size", metavar="N", help="Run at most so many examples at once; one result.")
]
Training = Annotated[bool, typer.Option("--training", help="Run the model in training mode, with dropout.")]
Pads = Annotated[
    str, typer.Option("--pads", metavar="keep|zero", help="Keep what the model computes at padding, or set it to zero.")
]
Tolerance = Annotated[
    float | None,
    typer.Option(
        "--tolerance",
        metavar="X",
        help="The relative L2 up to which two gradients agree. By default what rounding explains, by dtype and depth.",
    ),
]
Ray = Annotated[
    bool,
    typer.Option(
        "--ray",
        help="Run on Ray, at RAY_ADDRESS or else on this machine: --file is of Parquet, JSON lines or texts, --labels and --ids "
        "name columns.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", metavar="N", help="With --ray, how many processes hold the model; by default 2."),
]
Column = Annotated[
    str | None, typer.Option("--column", metavar="NAME", help="With --ray, the column of the texts; by default text.")
]
Give = Annotated[
    str | None,
    typer.Option(
        "--give",
        metavar="saliency|tables",
        help="With --ray, the saliency of each position, or each row's table gradient.",
    ),
]
Prefix = Annotated[
    str | None,
    typer.Option(
        "--prefix",
        metavar="TEXT",
        help="With --ray, goes before the new columns' names, where the rows have such already.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout, and nothing else there.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show errors with their traceback, and the frameworks' warnings.")]


class Command(typer.core.TyperCommand):  # type: ignore[misc]  # typer is not installed where types are checked
    """A command whose option --pair takes two arguments and may be repeated."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, with each `--pair A B` joined to one argument."""
        rest: list[str] = super().parse_args(ctx, _joined(args))
        return rest


def pairs_from(given: Sequence[str] | None) -> list[tuple[str, str]]:
    """Return the pairs of --pair, which `Command` has joined as JSON."""
    return [(pair[0], pair[1]) for pair in map(json.loads, given or ())]


def _joined(args: Sequence[str]) -> list[str]:
    joined: list[str] = []
    rest = list(args)
    while rest:
        one = rest.pop(0)
        if one == "--":
            return [*joined, one, *rest]
        if one != "--pair" and not one.startswith("--pair="):
            joined.append(one)
            continue
        pair = [one.removeprefix("--pair=")] if one != "--pair" else []
        while rest and len(pair) < 2:
            pair.append(rest.pop(0))
        if len(pair) < 2:
            raise UsageError(
                f"--pair has {len(pair)} text{'s' if not pair else ''}: expected two, as --pair 'A man plays.' 'A song is heard.'"
            )
        joined.append("--pair=" + json.dumps(pair))
    return joined
