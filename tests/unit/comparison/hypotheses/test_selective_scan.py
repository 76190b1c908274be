"""Another selective scan is found by its values; what both compute is summed up here over all pairs of tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embgrad import TokenBatch
from embgrad.comparison.hypotheses.selective_scan import SelectiveScan
from embgrad.comparison.hypotheses.site import Explanation, Site
from tests.unit.comparison.hypotheses.modules import IDS, REAL, best, module_site
from tests.unit.comparison.hypotheses.planted import site_of

RANDOM = np.random.default_rng(0)
WIDTH, STATES, LOW = 12, 3, 4
U, GATE, OTHER = RANDOM.normal(size=(3, 2, 5, WIDTH))
X = RANDOM.normal(size=(2, 5, LOW + 2 * STATES))
WORDS = RANDOM.normal(size=(2, 5, 8))
LOGS = RANDOM.normal(size=(WIDTH, STATES))
SKIP, BIAS = RANDOM.normal(size=(2, WIDTH))
MATRIX = RANDOM.normal(size=(WIDTH, LOW))
HELD = {"mixer.A_log": LOGS, "mixer.D": SKIP, "mixer.step.weight": MATRIX, "mixer.step.bias": BIAS}
BEFORE = {"mixer.narrow": X, "mixer.narrow:input": U, "mixer.in": np.concatenate([OTHER, GATE], -1), "words": WORDS}
LOW_X, B_X, C_X = np.split(X, [LOW, LOW + STATES], -1)


def silu(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / (1 + np.exp(-x)))


def softplus(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.log1p(np.exp(x)))


def states(
    step: np.ndarray, rates: np.ndarray, b: np.ndarray, c: np.ndarray, u: np.ndarray, *, hold: bool = False
) -> np.ndarray:
    """Return the sum of what each token leaves for each later one and itself."""
    passed = np.cumsum(step, 1)
    kept = np.exp(
        (passed[:, :, None] - passed[:, None])[..., None] * rates
    )  # (example, later, earlier, feature, state)
    kept *= np.tri(step.shape[1])[:, :, None, None]
    share = (
        (np.exp(step[..., None] * rates) - 1) / rates if hold else np.broadcast_to(step[..., None], kept[:, 0].shape)
    )
    return np.einsum("etsfn,esfn,esn,etn,esf->etf", kept, share, b, c, u)


def scan(**other: Any) -> np.ndarray:
    """Return a scan's outputs, in which some values are others."""
    it = {
        **{"low": LOW_X, "b": B_X, "c": C_X, "u": U, "bias": BIAS, "matrix": MATRIX, "skip": SKIP, "gate": silu(GATE)},
        **{"rates": -np.exp(LOGS), "stepped": softplus, "hold": False, "entering": U, **other},
    }
    step = it["stepped"](it["low"] @ it["matrix"].T + it["bias"])
    return np.asarray(
        (states(step, it["rates"], it["b"], it["c"], it["entering"], hold=it["hold"]) + it["skip"] * it["u"])
        * it["gate"]
    )


def backwards() -> np.ndarray:
    step = softplus(LOW_X @ MATRIX.T + BIAS)
    turned = (it[:, ::-1] for it in (B_X, C_X, U))
    return np.asarray((states(step[:, ::-1], -np.exp(LOGS), *turned)[:, ::-1] + SKIP * U) * silu(GATE))


def normed(x: np.ndarray, epsilon: float) -> np.ndarray:
    return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon))


def site(a: np.ndarray, b: np.ndarray, before: Any = BEFORE, held: Any = HELD, **further: Any) -> Site:
    return module_site(a, b, before, key="mixer.out:input#0", held_a=held, **further)


def found(a: np.ndarray, b: np.ndarray, *rest: Any, **further: Any) -> Explanation:
    at = site(a, b, *rest, **further)
    return best(at, SelectiveScan().explain(at))


A = scan()
WITHOUT = softplus(LOW_X @ MATRIX.T)  # the step without its bias
PLANTED = {
    "no softplus": (scan(stepped=lambda x: x), "activation",
        "the function of the step is softplus in a and missing in b"),
    "relu": (scan(stepped=lambda x: np.maximum(x, 0)), "activation",
        "the function of the step is softplus in a and ReLU in b"),
    "no bias": (scan(bias=0 * BIAS), "missing-bias", "b adds no bias to the step"),
    "bias twice": (scan(bias=2 * BIAS), "different-weight", "b adds the bias of the step twice"),
    "states grow": (scan(rates=np.exp(LOGS)), "recurrence", "A is -exp of its weight in a and exp of its weight in b"),
    "logarithm for rate": (scan(rates=LOGS), "recurrence", "A is -exp of its weight in a and its weight in b"),
    "minus the logarithm": (scan(rates=-LOGS), "recurrence", "A is -exp of its weight in a and minus its weight in b"),
    "held": (scan(hold=True), "recurrence",
        "B is multiplied by the step in a and by (exp(step A) - 1) / A, as by a zero-order hold, in b"),
    "backwards": (backwards(), "recurrence", "the states begin at the first token in a and at the last one in b"),
    "no skip": (scan(skip=0), "missing-part", "b leaves out the skip of mixer, the product with D"),
    "skip of 1": (scan(skip=1), "different-weight", "D is its weight in a and 1 in b"),
    "skip behind": (scan(skip=0) + SKIP * U, "recurrence", "b adds the skip behind the gate, and a before it"),
    "no gate": (scan(gate=1), "missing-gate",
        "the product with the second half of in is computed in a and missing in b"),
    "linear gate": (scan(gate=GATE), "activation", "the function of the gate is SiLU in a and missing in b"),
    "tanh gate": (scan(gate=np.tanh(GATE)), "activation", "the function of the gate is SiLU in a and tanh in b"),
    "other gate": (scan(gate=silu(OTHER)), "gate-swapped",
        "the gate is the second half of in in a and the first half of in in b"),
    "gate enters": (scan(entering=GATE, u=GATE), "gate-swapped",
        "the second half of in enters the states in b in place of narrow:input"),
    "B for C": (scan(b=C_X, c=B_X), "permuted-weight",
        "b takes the parts of narrow as the step, C, B, and a as the step, B, C"),
    "step last": (scan(low=X[..., 2 * STATES :], b=X[..., :STATES], c=X[..., STATES : 2 * STATES]), "permuted-weight",
        "b takes the parts of narrow as B, C, the step, and a as the step, B, C"),
    "step last, and set": (scan(b=X[..., :STATES], c=X[..., STATES : 2 * STATES]), "permuted-weight",
        "b takes the parts of narrow as B, C, the step, and a as the step, B, C, but for the step"),
}  # fmt: skip
PLANTED = {
    name: (b, cause, text.replace("narrow:input", "narrow")) for name, (b, cause, text) in PLANTED.items()
}  # the input of a module has its name


@pytest.mark.parametrize(("b", "cause", "text"), PLANTED.values(), ids=PLANTED)
def test_a_difference_is_named(b: np.ndarray, cause: str, text: str) -> None:
    explanation = found(A, b)
    assert (explanation.cause, explanation.text) == (cause, text)


def test_two_differences_are_named() -> None:
    explanation = found(A, scan(bias=0 * BIAS, gate=np.tanh(GATE)))
    assert {explanation.cause, *(other.cause for other in explanation.also)} == {"missing-bias", "activation"}


REFERENCES: dict[str, tuple[dict[str, Any], dict[str, np.ndarray], dict[str, np.ndarray]]] = {
    "parts in another order": ({}, {"mixer.narrow": np.concatenate([C_X, B_X, LOW_X], -1)}, {}),
    "parts apart": ({}, {"mixer.narrow": WORDS, "mixer.b": B_X, "mixer.c": C_X, "mixer.low": LOW_X}, {}),
    "rates as weight": ({"rates": LOGS}, {}, {}),
    "held": ({"hold": True}, {}, {}),
    "no gate": ({"gate": 1}, {}, {}),
    "linear gate": ({"gate": GATE}, {}, {}),
    "no bias": ({"bias": 0 * BIAS}, {}, {}),
    "divided by root mean square": (
        {"low": normed(LOW_X, 1e-6), "b": normed(B_X, 1e-6), "c": normed(C_X, 1e-6)},
        {},
        {},
    ),
    "of another epsilon": ({"low": normed(LOW_X, 1e-5), "b": normed(B_X, 1e-5), "c": normed(C_X, 1e-5)}, {}, {}),
    "padding as zeros": ({"entering": U * REAL[..., None]}, {}, {}),
    "weights turned": ({}, {}, {"mixer.A_log": LOGS.T, "mixer.step.weight": MATRIX.T}),
}


@pytest.mark.parametrize(("own", "before", "held"), REFERENCES.values(), ids=REFERENCES)
def test_references_of_other_conventions_are_known(own: Any, before: Any, held: Any) -> None:
    explanation = found(scan(**own), scan(**{**own, "skip": 0}), {**BEFORE, **before}, {**HELD, **held})
    assert explanation.cause == "missing-part"


def test_parts_that_are_tensors_are_exchanged() -> None:
    before = {**BEFORE, "mixer.narrow": WORDS, "mixer.b": B_X, "mixer.c": C_X, "mixer.low": LOW_X}
    explanation = found(A, scan(b=C_X, c=B_X), before)
    assert (explanation.cause, explanation.text) == ("swapped-weights", "B and C are exchanged in b")


def test_a_missing_division_of_the_parts_is_named() -> None:
    a = scan(low=normed(LOW_X, 1e-6), b=normed(B_X, 1e-6), c=normed(C_X, 1e-6))
    explanation = found(a, A)
    assert explanation.cause == "missing-norm"
    assert explanation.text == "the step's part, B and C are divided by their root mean square in a, and not in b"


@pytest.mark.parametrize("of_a", [False, True])
def test_padding_before_a_text_enters_as_zeros_in_one_model(of_a: bool) -> None:
    real = REAL[:, ::-1]
    both = A, scan(entering=U * real[..., None])
    at = site(*both[:: -1 if of_a else 1], real=real)
    recordings = [replace(recording, batch=TokenBatch(IDS, real.astype(int))) for recording in at.recordings]
    explanation = best(at, SelectiveScan().explain(replace(at, recordings=(recordings[0], recordings[1]))))
    assert explanation.cause == "mask-ignored"
    assert explanation.text == f"padding enters the states as {'it is' if of_a else 'zeros'} in b, not in a"


def test_a_zero_order_hold_of_the_reference_is_named() -> None:
    text = "B is multiplied by (exp(step A) - 1) / A, as by a zero-order hold, in a and by the step in b"
    assert found(scan(hold=True), A).text == text


def long(b: Any) -> Site:
    """Return a site of thirty tokens, whose output in b is a function of that in a and of the output from the end."""
    random = np.random.default_rng(1)
    u, gate, narrow = (
        random.normal(size=(1, 30, WIDTH)),
        random.normal(size=(1, 30, WIDTH)),
        random.normal(size=(1, 30, 10)),
    )
    low, *both = np.split(narrow, [LOW, LOW + STATES], -1)
    step = softplus(low @ MATRIX.T + BIAS)
    forwards = states(step, -np.exp(LOGS), *both, u)
    from_end = states(step[:, ::-1], -np.exp(LOGS), *(it[:, ::-1] for it in (*both, u)))[:, ::-1]
    a, other = ((it + SKIP * u) * silu(gate) for it in (forwards, from_end))
    before = {"mixer.narrow": narrow, "mixer.narrow:input": u, "mixer.z": gate}
    return site_of(a, b(a, other), before, weights=HELD)


def test_the_direction_is_seen_in_long_texts() -> None:
    at = long(lambda a, from_end: from_end)
    assert best(at, SelectiveScan().explain(at)).text == PLANTED["backwards"][2]


def test_a_scan_reproduces_all_tokens() -> None:
    at = long(lambda a, from_end: from_end)
    at.a[:, -1] += 1
    assert SelectiveScan().explain(at) == []


@pytest.mark.parametrize(
    ("name", "field"),
    [("A_log", "rates"), ("D", "skip"), ("step.weight", "matrix"), ("step.bias", "bias")],
)
def test_the_port_s_own_weights_are_named(name: str, field: str) -> None:
    values = HELD[f"mixer.{name}"] + np.where(np.arange(WIDTH) == 3, 0.5, 0).reshape(
        (-1, 1)[: HELD[f"mixer.{name}"].ndim]
    )
    b = scan(**{field: -np.exp(values) if field == "rates" else values})
    explanation = found(A, b, held_b={**HELD, f"mixer.{name}": values})
    assert explanation.cause == "different-weight"
    assert f"b has mixer.{name} " in explanation.text


def test_what_differs_before_a_scan_goes_on_beside_the_point_that_was_set() -> None:
    other = np.tanh(U)
    earlier = site(U, other)
    cause = Explanation(
        "activation", "the activation is", ("SiLU", "tanh"), other, lambda at: np.tanh(at("mixer.u")), ("mixer.u",)
    )
    texts = (cause.text, PLANTED["no skip"][2])
    for skip, text in zip((SKIP, 0.0), texts, strict=True):
        b = scan(entering=other, u=other, skip=skip)
        explanation = found(A, b, {**BEFORE, "mixer.u": U}, memory={"explained": [(earlier, cause)]})
        assert explanation.text == text
        assert "mixer.u" in explanation.inputs


@pytest.mark.parametrize(
    "at",
    [
        site(OTHER, GATE),
        site(A, 2 * A, held={name: values for name, values in HELD.items() if name != "mixer.D"}),
        site(A, 2 * A, {"mixer.narrow:input": U, "mixer.in": BEFORE["mixer.in"]}),
        site(*(it[:, :4] for it in (A, 2 * A)), {name: it[:, :4] for name, it in BEFORE.items()}, real=REAL[:, :4]),
        site(A, RANDOM.normal(size=A.shape)),
    ],
    ids=["no scan", "no skip", "no parts", "other tokens", "another output"],
)
def test_nothing_is_said_of_other_sites(at: Site) -> None:
    assert SelectiveScan().explain(at) == []
