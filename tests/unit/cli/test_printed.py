"""What commands print, to the letter and with its styles, of a model whose numbers are exact."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest

from tests.unit.cli.commands import TEXTS

#: A linear model of small whole numbers, and the same with its head doubled.
MODEL = """
import numpy as np
from embgrad.testing.reference import ReferenceModel, lookup

def forward(model, input_ids, attention_mask=None):
    rows = lookup(model["E"], input_ids)
    mask = np.ones(input_ids.shape) if attention_mask is None else attention_mask
    return (rows * rows.__class__(mask[..., None].astype(np.float32))).sum(1) @ model["W"]

def build(factor=2):
    table = np.arange(60, dtype=np.float32).reshape(30, 2) % 7 - 3
    return ReferenceModel(forward, {"E": table, "W": np.array([[1, -2], [0.5, 4]], np.float32) * factor})

def other():
    return build(4)
"""
STYLES = {
    "": "", "0": "/", "1": "bold", "2": "dim", "1;32": "bold green", "1;31": "bold red", "32": "green", "33": "yellow",
}  # fmt: skip
ASK = ("-m", "exact.py:build", *TEXTS[2:], "-t", "a gripping film", "-t", "never")
OTHER = ("--against", "exact.py:other")


@pytest.fixture
def exact(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (directory / "exact.py").write_text(MODEL)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")  # sixteen colours, so that scores are digits


def styled(text: str) -> str:
    """Return a text with its styles as tags, without blanks at the ends of lines."""
    text = re.sub("\x1b\\[0m( *)\x1b\\[1m", r"\1", re.sub("\x1b\\[(\\d*[AK]|\\?25[lh])", "", text))
    text = re.sub("\x1b\\[([0-9;]*)m", lambda code: f"<{STYLES[code[1]]}>", text)
    return "\n".join(line.rstrip() for line in text.splitlines()).strip()


#: The printed texts of a search, after its first line in a file.
FOUND: Final = """<bold>HotFlip, maximize Logit(index=0)</>
<dim>example 0: L = 2 → 17, 1 token changed, 23 evaluations, 1 gradient</>
<dim>before  </><dim>[CLS]</> a gripping [-film-] <dim>[SEP]</>
<dim>after   </><dim>[CLS]</> a gripping{+ping+} <dim>[SEP]</>
<dim>example 1: L = 10 → 10, 0 tokens changed, 6 evaluations, 1 gradient</>
<dim>before  </><dim>[CLS]</> never <dim>[SEP]</>
<dim>after   </><dim>[CLS]</> never <dim>[SEP]</>
<dim>[-…-]: replaced or deleted, {+…+}: put in</>
"""

PRINTED = {
    ("gradients",): """
<bold>at word: 2 × 6 × 2 float32, norm 27.6586, ReferenceModel (reference)</>
  objective: Sum(), total -52
  padding: 3 positions, largest gradient there 0

<bold>example  objective   norm  tokens                          </>
0               -2  22.58  [CLS] a grip ##ping film [SEP]
1              -50  15.97  [CLS] never [SEP]
""",
    ("gradients", "--objective", "Logit(0)", "--max-length", "4"): """
<bold>at word: 2 × 4 × 2 float32, norm 5.91608, ReferenceModel (reference)</>
  objective: Logit(index=0), total 13
  padding: 1 position, largest gradient there 0

<bold>example  objective   norm  tokens              </>
0                3  4.472  [CLS] a grip [SEP]
1               10  3.873  [CLS] never [SEP]
""",
    ("gradients", "--at", "word", "--at", "E", "--objective", "Logit(0)", "--max-length", "3"): """
<bold>at word: 2 × 3 × 2 float32, norm 5.47723, ReferenceModel (reference)</>
  objective: Logit(index=0), total 12
<bold>at E: 2 × 3 × 2 float32, norm 5.47723, ReferenceModel (reference)</>
  objective: Logit(index=0), total 12

<bold>example  objective   norm  tokens             </>
0                2  3.873  [CLS] a [SEP]
1               10  3.873  [CLS] never [SEP]
""",
    ("attribute", "--method", "input-x-gradient", "--method", "integrated-gradients", "--set", "steps=2"): """
<bold>input-x-gradient at word, ReferenceModel (reference)</>
<dim>[CLS]</> a(-1) gripping(+9) film(-3) <dim>[SEP]</>
<dim>objective -2</>
<dim>[CLS]</> never(-9) <dim>[SEP]</>
<dim>objective -50</>
<dim>contribution, -9 to +9; 9 is the example's largest</>

<bold>integrated-gradients at word, ReferenceModel (reference)</>
<dim>[CLS]</> a(-1) gripping(+9) film(-3) <dim>[SEP]</>
<dim>objective -2, at the baseline 0, error of completeness 0</>
<dim>[CLS]</> never(-9) <dim>[SEP]</>
<dim>objective -50, at the baseline 0, error of completeness 0</>
<dim>contribution, -9 to +9; 9 is the example's largest</>

""",
    ("attribute", "--method", "saliency", "--to", "table.csv"): """
9 rows of 2 examples
written to table.csv
""",
    ("compare", *OTHER): """
<bold red>exact.py:other: differs</>
b = reference embgrad.testing.tensors.ReferenceModel at 'word' against a = reference
embgrad.testing.tensors.ReferenceModel at 'word'
differ: relative L2 1.00e+00, tolerance 2.5e-06
             relative L2     largest      cosine
         all   1.000e+00   9.000e+00  1.00000000
   example 0   1.000e+00   9.000e+00  1.00000000
   example 1   1.000e+00   9.000e+00  1.00000000
finding: 100 % of the difference is a factor 2.00: a took the mean over the batch of 2 examples
finding: 100 % of the difference is a factor 2.00: a took the mean over an example's 2 entries of
the output
""",
    ("bisect", *OTHER): """
a is exact.py:build, b is exact.py:other
b = reference ReferenceModel against a = reference ReferenceModel
    point   forward  backward
     word   0.0e+00   1.0e+00  diverges
   output   1.0e+00         -  diverges
objective   9.3e-01         -  diverges
The values diverge at 'output' (relative L2 1.0e+00) and agree before it, at 'word'. These of its
weights differ: 'W' (times 2, relative L2 1.0e+00).
""",
    ("search", "--objective", "Logit(0)", "--set", "steps=1"): f"""
{FOUND}
examples                 2
seconds                  #
an example's              mean  median
evaluations               14.5    14.5
gradients                    1       1
changed tokens             0.5     0.5
share of changed tokens  8.3 %   8.3 %
""",
}


SHOWN = {
    ("show", "g.safetensors"): """
<bold>at word, ReferenceModel (reference)</>
<dim>[CLS]</> a(9) grip(9)ping(9) film(9) <dim>[SEP]</>
<dim>[CLS]</> never(9) <dim>[SEP]</>

<dim>length of the gradient, 0 to 9; 9 is the example's largest</>
""",
    ("show", "g.safetensors", "--words", "--kind", "dot", "--to", "table.csv"): """
<bold>at word, ReferenceModel (reference)</>
<dim>[CLS]</> a(-1) gripping(+9) film(-3) <dim>[SEP]</>
<dim>[CLS]</> never(-9) <dim>[SEP]</>

<dim>gradient · embedding, -9 to +9; 9 is the example's largest</>
written to table.csv
""",
    ("show", "a.safetensors"): """
<bold>at word, ReferenceModel (reference)</>
<dim>[CLS]</> a(9) grip(9)ping(9) film(9) <dim>[SEP]</>
<dim>[CLS]</> never(9) <dim>[SEP]</>

<dim>length of the gradient, 0 to 9; 9 is the example's largest</>
""",
    ("show", "s.safetensors"): f"""
<bold>search, ReferenceModel (reference)</>
{FOUND}""",
    ("attribute-tokens", "-m", "language.py:build", "--ids", "three.json", "-o", "t.safetensors"): """
<bold>input-x-gradient at word, ReferenceModel (reference)</>
<bold>7  </>5(-9)
<bold>3  </>5(+9) 7(-6)
<dim>contribution, -9 to +9; 9 is the example's largest</>
written to t.safetensors
""",
}


@pytest.mark.parametrize("words", PRINTED, ids=" ".join)
def test_printed(command: Any, exact: None, words: tuple[str, ...]) -> None:
    done = command(words[0], *ASK, *words[1:])
    assert styled(re.sub(r"(?<=seconds {18})[\d.e-]+", "#", done.out)) == PRINTED[words].strip()
    assert done.code == (1 if OTHER[1] in words else 0)
    notes = styled(done.err)
    default = "<dim>note: the objective is Sum() by default; choose another with --objective</>"
    assert (default in notes) == ("--objective" not in words)
    cut = "<yellow>warning: 3 tokens were cut off from 1 of 2 examples, which keep at most 3 tokens</>"
    assert (cut in notes) == ("3" in words)


@pytest.mark.parametrize("words", SHOWN, ids=" ".join)
def test_shown(command: Any, exact: None, directory: Path, words: tuple[str, ...]) -> None:
    (directory / "language.py").write_text("from tests.unit.attribution.language_models import causal as build\n")
    (directory / "three.json").write_text("[[5, 7, 3]]")
    for name, *options in (
        ("gradients", "-o", "g.safetensors"),
        ("attribute", "--method", "saliency", "-o", "a.safetensors"),
        ("search", "--objective", "Logit(0)", "--set", "steps=1", "-o", "s.safetensors"),
    ):
        assert command(name, *ASK, *options).code == 0
    done = command(*words)
    assert (styled(done.out), done.code) == (SHOWN[words].strip(), 0)
