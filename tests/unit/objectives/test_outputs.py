"""What a model returned, by name and by role."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import pytest

import embgrad
from embgrad.objectives.outputs import choose_output, name_outputs
from tests.unit.refusals import refused


class T:
    """A tensor."""


A, B, C = T(), T(), T()


def named(returned: Any, positional: tuple[str, ...] = ()) -> dict[str, Any]:
    return name_outputs(returned, lambda value: isinstance(value, T), positional)


@dataclass
class Output:
    shared: ClassVar[Any] = C  # no output
    logits: Any
    hidden_states: Any = None


Pair = namedtuple("Pair", ["first", "second"])


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (A, {"output": A}),
        ([A], {"0": A}),
        ((A, B), {"0": A, "1": B}),
        ({"logits": A, "loss": None, "past": 3}, {"logits": A}),
        (OrderedDict(last_hidden_state=A, pooler_output=B), {"last_hidden_state": A, "pooler_output": B}),
        (MappingProxyType({"a": A}), {"a": A}),
        ({0: A}, {"0": A}),
        (Pair(A, B), {"first": A, "second": B}),
        (Output(A, (B, C)), {"logits": A, "hidden_states.0": B, "hidden_states.1": C}),
        ((A, {"deep": [B, (C,)]}), {"0": A, "1.deep.0": B, "1.deep.1.0": C}),
        ((None, A, "text"), {"1": A}),
    ],
)
def test_names(returned: Any, expected: dict[str, Any]) -> None:
    assert named(returned) == expected


def test_a_backend_may_know_the_entries_names() -> None:
    assert named((A, B, C), ("sequence_output", "pooled_output")) == {"sequence_output": A, "pooled_output": B, "2": C}
    assert named([A], ("sequence_output", "pooled_output")) == {"sequence_output": A}


@pytest.mark.parametrize("returned", [None, 3, "text", {}, [], {"a": None}, object()])
def test_no_tensor_at_all(returned: Any) -> None:
    with pytest.raises(embgrad.errors.OutputError) as caught:
        named(returned)
    for fragment in (
        f"returned {type(returned).__name__}",
        "there is no tensor",
        "expected a tensor, or a dict",
        "call=",
    ):
        assert fragment in str(caught.value)


@pytest.mark.parametrize(
    ("names", "wanted", "expected"),
    [
        (["output"], None, "output"),
        (["output"], "logits", "output"),
        (["0"], None, "0"),
        (["loss", "logits", "hidden_states.0"], None, "logits"),
        (["last_hidden_state", "pooler_output"], "pooled", "pooler_output"),
        (["last_hidden_state", "pooler_output"], "sequence", "last_hidden_state"),
        (["sequence_output", "pooled_output"], "pooled", "pooled_output"),
        (["sequence_output", "pooled_output"], "sequence_output", "sequence_output"),
        (["pooled", "pooler_output"], "pooled", "pooled"),  # a native name comes before a role
        (["last_hidden_state"], None, "last_hidden_state"),
    ],
)
def test_choices(names: list[str], wanted: str | None, expected: str) -> None:
    assert choose_output(dict.fromkeys(names, A), wanted) == expected


@pytest.mark.parametrize(
    ("names", "wanted", "fragments"),
    [
        (
            ["last_hidden_state", "pooler_output"],
            None,
            ["2 outputs and none of them is its logits", "output=...", "'last_hidden_state' (role 'sequence')"],
        ),
        (["output"], "pooled", ["no output 'pooled'", "'output' (role 'logits')"]),
        (["last_hidden_state"], "logits", ["no output 'logits'", "'last_hidden_state' (role 'sequence')"]),
        (["last_hidden_state"], "last_hiden_state", ["Did you mean 'last_hidden_state'?"]),
        (["0", "1"], 0, ["no output 0", "there are '0', '1'.", "Did you mean '0'?"]),
        (["0"], "", ["no output ''"]),
    ],
)
def test_outputs_that_are_not_there(names: list[str], wanted: Any, fragments: list[str]) -> None:
    with refused(embgrad.errors.OutputError, *fragments):
        choose_output(dict.fromkeys(names, A), wanted)
