"""The command `attribute`: the numbers of `embgrad.attribute`, words in the terminal, files and pages, messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embgrad
from tests.unit.cli.commands import ASK, TEXTS, built, refused

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "grip", "##ping", "film", "[MASK]", "again", "."]


@pytest.fixture
def masked(directory: Path) -> Path:
    """Write a vocabulary with a mask."""
    (directory / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    return directory


def test_the_file_holds_the_attribution(command: Any, masked: Path) -> None:
    asked = (
        "--method", "integrated-gradients", "--set", "steps=7", "--set", "baseline=mask", "--set", "keep-special=true",
        "--objective", "Logit(1)",
    )  # fmt: skip
    done = command("attribute", *TEXTS, "-t", "a gripping film", *asked, "-o", "a.safetensors")
    assert done.code == 0, done.err
    saved = embgrad.load("a.safetensors")
    assert isinstance(saved, embgrad.results.Attribution)
    batch = embgrad.TokenBatch([[2, 4, 5, 6, 7, 3]])
    alone = embgrad.attribute(
        built(masked),
        batch.replace(tokens=[["[CLS]", "a", "grip", "##ping", "film", "[SEP]"]]),
        embgrad.Logit(1),
        embgrad.methods.IntegratedGradients(7, baseline=8, keep_special=True),
    )
    np.testing.assert_allclose(saved.scores, alone.scores, rtol=1e-6)
    assert saved.provenance["method"]["baseline"] == "mask"
    lines = done.out.splitlines()
    assert lines[0] == "integrated-gradients at word, ReferenceModel (reference)"
    assert lines[1].startswith("[CLS] a(")
    assert "gripping(" in lines[1]
    assert lines[2].startswith(f"objective {alone.objective[0]:.6g}, at the baseline")
    assert lines[3] == "contribution, -9 to +9; 9 is the example's largest"
    assert lines[-1] == "written to a.safetensors"


def test_several_methods_are_listed_and_written_side_by_side(command: Any, masked: Path) -> None:
    asked = ("--method", "saliency", "--method", "kernel_shap", "--set", "samples=64", "--set", "baseline=0")
    done = command("attribute", *ASK, *asked, "--json", "-o", "a.safetensors", "--html", "page.html")
    assert done.code == 0, done.err
    answer = json.loads(done.out)
    saved = embgrad.load("a.safetensors")
    assert list(answer["results"]) == list(saved) == ["saliency", "kernel_shap"]
    shap = answer["results"]["kernel_shap"]
    np.testing.assert_array_equal(
        shap["tables"]["tokens"]["score"], saved["kernel_shap"].scores[saved["kernel_shap"].real]
    )
    assert shap["provenance"]["method"]["samples"] == 64
    assert answer["results"]["saliency"]["delta"] is None
    page = Path("page.html").read_text(encoding="utf-8")
    assert "<h1>Attributions</h1>" in page
    assert "kernel_shap" in page


def test_smooth_grad_takes_another_method(command: Any) -> None:
    asked = ("--method", "smooth-grad", "--set", "of=input-x-gradient", "--set", "samples=3", "--json")
    described = json.loads(command("attribute", *ASK, *asked).out)["results"]["smooth_grad"]["provenance"]
    assert (described["method"]["of"], described["method"]["samples"]) == ({"class": "InputXGradient"}, 3)


def test_a_saved_attribution_is_shown(command: Any, masked: Path) -> None:
    both = ("--method", "saliency", "--method", "occlusion", "-o", "a.safetensors")
    assert command("attribute", *TEXTS, "-t", "a gripping film", *both).code == 0
    done = command("show", "a.safetensors", "--words")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0] == "at saliency, ReferenceModel (reference)"
    assert "gripping(" in lines[1]
    assert lines[-2:] == [
        "length of the gradient, 0 to 9; 9 is the example's largest",
        "contribution, -9 to +9; 9 is the example's largest",
    ]
    only = command("show", "a.safetensors", "--at", "occlusion", "--json")
    assert list(json.loads(only.out)["results"]) == ["occlusion"]
    assert "--kind dot is for gradients" in refused(command("show", "a.safetensors", "--kind", "dot"))
    assert "Did you mean 'occlusion'" in refused(command("show", "a.safetensors", "--at", "oclusion"))


def test_an_attribution_of_ids_has_no_words(command: Any) -> None:
    done = command("attribute", *ASK, "-o", "a.safetensors")
    assert done.out.startswith("integrated-gradients at word"), "by default"
    assert command("show", "a.safetensors").out.splitlines()[1].startswith("4(")
    assert "the tokens of this attribution are not known" in refused(command("show", "a.safetensors", "--words"))


def test_saved_attributions_are_compared_and_reported(command: Any) -> None:
    for name in ("a", "b"):
        assert command("attribute", *ASK, "-o", f"{name}.safetensors").code == 0
    assert command("compare", "a.safetensors", "b.safetensors").code == 0
    assert command("report", "a.safetensors", "b.safetensors", "-o", "page.html").code == 0
    assert "<h1>Attributions</h1>" in Path("page.html").read_text(encoding="utf-8")


def test_a_report_does_not_compare_attributions_by_different_methods(command: Any) -> None:
    for name, method in (("a", "saliency"), ("b", "input-x-gradient"), ("c", "saliency")):
        assert command("attribute", *ASK, "--method", method, "-o", f"{name}.safetensors").code == 0
    both = ("--method", "saliency", "--method", "occlusion", "--set", "replacement=0")
    assert command("attribute", *ASK, *both, "-o", "two.safetensors").code == 0
    assert command("report", "a.safetensors", "b.safetensors", "-o", "page.html").code == 0
    assert "differs" not in Path("page.html").read_text(encoding="utf-8")
    done = command("report", "a.safetensors", "b.safetensors", "c.safetensors", "two.safetensors", "-o", "page.html")
    assert done.code == 0, done.err
    page = Path("page.html").read_text(encoding="utf-8")
    assert "c.safetensors against a.safetensors" in page
    assert "two.safetensors, saliency against a.safetensors" in page
    assert "two.safetensors, occlusion against" not in page
    assert "b.safetensors against" not in page


def test_a_saved_score_that_is_not_a_number_is_not_shown_as_zero(command: Any) -> None:
    assert command("attribute", *ASK, "--method", "saliency", "-o", "a.safetensors").code == 0
    saved = embgrad.load("a.safetensors")
    assert isinstance(saved, embgrad.results.Attribution)
    saved.scores[:] = np.nan
    saved.scores[0, 0] = np.inf
    saved.save("nan.safetensors")
    line = command("show", "nan.safetensors").out.splitlines()[1]
    assert line.count("(?)") == len(line.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--method", "integrated-gradient"],
            "--method is 'integrated-gradient': .*Did you mean 'integrated-gradients'?",
        ),
        (["--method", "lime", "--method", "lime"], "--method names 'lime', 'lime': expected each method once"),
        (["--set", "step=5"], "--set step: there is no such argument; integrated-gradients has 'steps'.*mean 'steps'?"),
        (["--method", "saliency", "--set", "steps=5"], "--set steps: there is no such argument; saliency has none"),
        (["--set", "steps"], "--set 'steps': expected an argument of the method as NAME=VALUE"),
        (["--set", "=5"], "--set '=5': expected an argument of the method as NAME=VALUE"),
        (["--set", "steps= "], "--set 'steps= ': expected an argument of the method as NAME=VALUE"),
        (["--set", "steps=5", "--set", "steps=6"], "--set gives steps twice: expected each argument once"),
        (["--set", "steps=0"], "steps is 0: expected a whole number of at least 1"),
        (["--set", "steps=many"], "steps is 'many': expected a whole number of at least 1"),
        (["--set", "baseline=zeros"], "baseline is 'zeros': .*Did you mean 'zero'?"),
        (["--set", "baseline=mask"], "the id of the mask is not known, .*: give the id itself"),
        (["--at", "wrod"], "Did you mean 'word'"),
        (
            ["--method", "smooth-grad", "--set", "of=saliencyy"],
            "--set of is 'saliencyy': expected one of 'saliency', 'input-x-gradient', 'integrated-gradients'.*'saliency'?",
        ),
        (["--method", "smooth-grad", "--set", "of=lime"], "--set of is 'lime': expected one of 'saliency'"),
        (["-o", "-"], "--output is '-', but the words are printed on stdout: expected the name of a file"),
        (["--html", "no/page.html"], "--html 'no/page.html': there is no folder 'no'"),
    ],
)
def test_wrong_usage_is_explained(command: Any, arguments: list[str], said: str) -> None:
    import re

    message = refused(command("attribute", *ASK, *arguments))
    assert re.search(said, message), message
