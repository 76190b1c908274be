"""The options that several commands share, in groups: each is declared, explained and checked once."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import typer

from embgrad.cli.run import own_process
from embgrad.cli.terminal import Terminal
from embgrad.common.options import count_or_none
from embgrad.engine.options import expect_pads
from embgrad.loading.errors import UsageError
from embgrad.loading.models import FRAMEWORKS, Loaded, expect_models, frameworks_from, load_model
from embgrad.loading.objectives import labels_from, parse_objective
from embgrad.loading.user_objects import expect_function, import_object
from embgrad.model_points.points import WORD
from embgrad.objectives.objectives import Objective

__all__ = [
    "SEVERAL_FRAMEWORKS",
    "At",
    "GradientRequest",
    "Inputs",
    "Models",
    "OneModel",
    "Tolerance",
    "of_comparison",
    "of_method",
    "of_model",
    "of_objective",
    "of_output",
    "of_texts",
]

SEVERAL_FRAMEWORKS = ",".join(FRAMEWORKS)

#: The makers of options, by the panel of the help that shows them.
of_model = functools.partial(typer.Option, rich_help_panel="Model")
of_texts = functools.partial(typer.Option, rich_help_panel="Texts")
of_method = functools.partial(typer.Option, rich_help_panel="Method")
of_objective = functools.partial(typer.Option, rich_help_panel="Objective")
of_points = functools.partial(typer.Option, rich_help_panel="Points and passes")
of_comparison = functools.partial(typer.Option, rich_help_panel="Comparison")
of_output = functools.partial(typer.Option, rich_help_panel="Output")

At = Annotated[
    list[str] | None,
    of_points(
        "--at",
        metavar="POINT",
        help="The point: word (the default), embeddings, layer.0, layer.-1, … or a path. May be repeated.",
    ),
]
Tolerance = Annotated[
    float | None,
    of_comparison(
        "--tolerance",
        metavar="X",
        help="The largest relative L2 difference of gradients that agree. Default: what rounding explains, by dtype and depth.",
    ),
]


@dataclass(frozen=True)
class Models:
    """The models of a command; a command of one model takes `OneModel`."""

    model: Annotated[
        str | None,
        of_model(
            "--model",
            "-m",
            metavar="MODEL",
            help="A checkpoint folder in Hugging Face's format; a TensorFlow SavedModel folder; an .onnx file, which has values "
            "only; or your own model as "
            "path/to/file.py:name or module:name, where the name is a model or a function that builds one.",
        ),
    ] = None
    frameworks: Annotated[
        str | None,
        of_model(
            "--frameworks",
            metavar="NAMES",
            help=f"Frameworks to build the model in, such as {SEVERAL_FRAMEWORKS}; each is compared with the first.",
        ),
    ] = None
    against: Annotated[
        str | None,
        of_model("--against", metavar="MODEL", help="Another model, spelled as --model, to compare with --model."),
    ] = None
    framework: Annotated[
        str | None,
        of_model(
            "--framework",
            metavar="NAME",
            help="torch, tensorflow, gluon, jax, keras (Keras 3 on the backend that KERAS_BACKEND names), or another backend's "
            "name. Default: the first that is installed.",
        ),
    ] = None
    ignore: Annotated[
        list[str] | None,
        of_model(
            "--ignore",
            metavar="PATTERN",
            help="A pattern of weights of a BERT's head to ignore, such as 'cls.*'; only the encoder is loaded. May be repeated.",
        ),
    ] = None

    def single(self) -> str:
        """Return the model of a command of one model, as the user wrote it.

        Raises:
            UsageError: there is none.
        """
        if self.model is None:
            raise UsageError("--model is missing: expected a folder, or your own model as path/to/file.py:name")
        return self.model

    def specify(self) -> list[tuple[str, str | None]]:
        """Return each model as the user wrote it, with its framework.

        Raises:
            UsageError: there are fewer than two models, or the options contradict each other.
        """
        if self.model is None:
            raise UsageError("--model is missing: expected --model with --frameworks or --against")
        if self.framework is not None and self.frameworks is not None:
            raise UsageError("--framework and --frameworks both name the framework of the model: pass only one")
        names = frameworks_from(self.frameworks) if self.frameworks is not None else [self.framework]
        if self.against is not None:
            if len(names) > 2:
                raise UsageError("--against compares two models: expected one framework, or one for each of the two")
            return [(self.model, names[0]), (self.against, names[-1])]
        if len(names) < 2:
            raise UsageError(
                f"there is only one model to compare: expected at least two frameworks, such as "
                f"--frameworks {','.join(FRAMEWORKS)}, or --against MODEL"
            )
        return [(self.model, name) for name in names]

    def expect(self) -> list[str]:
        """Check that the models exist, see `expect_models`; return each as the user wrote it."""
        models = self.specify()
        expect_models(models, self.ignore or (), own_process=own_process())
        return [spelled for spelled, _ in models]

    def load(self, terminal: Terminal) -> dict[str, Loaded]:
        """Load the models; return each by a label that is unique among them."""
        models: dict[str, Loaded] = {}
        for spelled, framework in self.specify():
            with terminal.busy(f"loading {spelled} …"):
                loaded = load_model(spelled, framework, self.ignore or ())
            label = loaded.framework if self.against is None else loaded.name
            if label in models:
                label = f"{label} ({loaded.framework}, --against)" if self.against is not None else f"{label} again"
            models[label] = loaded
        return models


OneModel = Annotated[Models, "model", "framework", "ignore"]


@dataclass(frozen=True)
class Inputs:
    """The sources of a command's examples."""

    text: Annotated[list[str] | None, of_texts("--text", "-t", metavar="TEXT", help="A text. May be repeated.")] = None
    pair: Annotated[
        list[str] | None,
        of_texts(
            "--pair",
            metavar="A B",
            help="A pair of texts, as two arguments. May be repeated. Pairs come after the texts of --text.",
        ),
    ] = None
    file: Annotated[
        str | None,
        of_texts(
            "--file",
            "-f",
            metavar="FILE",
            help="A UTF-8 file with one text per line; blank lines are skipped. '-' is stdin, which is also read if texts are "
            "piped in and no other option gives any.",
        ),
    ] = None
    pairs: Annotated[
        bool, of_texts("--pairs", help="Each line of the file is a pair of texts, separated by a TAB.")
    ] = False
    ids: Annotated[
        str | None,
        of_texts(
            "--ids",
            metavar="FILE",
            help="A JSON file of token ids, in place of texts: a list of lists, or an object with 'ids', 'mask' and 'types'.",
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        of_texts(
            "--tokenizer",
            metavar="TOKENIZER",
            help="A folder, a tokenizer.json, a vocab.txt, or your own as path/to/file.py:name. Default: the model's folder.",
        ),
    ] = None
    max_length: Annotated[
        int | None,
        of_texts(
            "--max-length", metavar="N", help="Truncate examples to N tokens; a warning reports how much was cut off."
        ),
    ] = None


@dataclass(frozen=True)
class GradientRequest:
    """The objective, the points and the other options of the gradients."""

    objective: Annotated[
        str | None,
        of_objective(
            "--objective",
            metavar="OBJECTIVE",
            help='The objective, in Python syntax: Sum(output="pooled"), Logit(1), Margin(1, 0), CrossEntropy([0, 1]), '
            "Projection([0.5, 2], output=\"sequence\", position=0). Default: the sum of 'pooled', else of the logits or only "
            "output.",
        ),
    ] = None
    labels: Annotated[
        str | None,
        of_objective(
            "--labels",
            metavar="LABELS",
            help="The labels of a cross-entropy, one per example: 0,1,1 or a file of them. Implies --objective CrossEntropy.",
        ),
    ] = None
    at: At = None
    batch_size: Annotated[
        int | None,
        of_points(
            "--batch-size",
            metavar="N",
            help="Run at most N examples at once, or N of a method's steps and samples; the result is still one.",
        ),
    ] = None
    training: Annotated[bool, of_points("--training", help="Run the model in training mode, with dropout.")] = False
    pads: Annotated[
        str,
        of_points(
            "--pads", metavar="keep|zero", help="Keep the gradients at padding (the default), or set them to zero."
        ),
    ] = "keep"
    split: Annotated[
        bool,
        of_points("--split", help="Run one backward pass per example, for models in which examples affect each other."),
    ] = False
    check: Annotated[
        bool, of_points("--check", help="Check the gradient by finite differences, and fail if it is wrong.")
    ] = False
    call: Annotated[
        str | None,
        of_model("--call", metavar="NAME", help="Your function (model, inputs) -> outputs, as path/to/file.py:name."),
    ] = None

    @cached_property
    def parsed(self) -> Objective | None:
        """The objective of --objective and --labels; None for the default."""
        return parse_objective(self.objective, labels_from(self.labels))

    @property
    def points(self) -> str | list[str]:
        """The argument `at` of `embgrad.gradients`."""
        first, *more = self.at or [WORD]
        return [first, *more] if more else first

    def expect(self) -> None:
        """Check, before anything is loaded, what needs no model."""
        _ = self.parsed  # raises if it is no objective
        expect_function(self.call, "--call")
        count_or_none(self.batch_size, "batch_size")
        expect_pads(self.pads)

    def function(self) -> Any:
        """Return the function of --call, which calls the model, or None."""
        return None if self.call is None else import_object(self.call)
