"""Another epsilon, kind, gain or bias of a norm is found by its values."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from embgrad.comparison.hypotheses.norm import Norm, NormOfSum, _in_half, _width
from embgrad.comparison.hypotheses.norm_fit import (
    DIVISORS,
    Parameters,
)
from embgrad.comparison.recording import Tensor
from embgrad.comparison.sites import Pair
from embgrad.comparison.weight_values import rounded
from tests.unit.comparison.hypotheses.modules import module_site
from tests.unit.comparison.hypotheses.normed import (
    GAIN,
    ONE,
    RANDOM,
    SHIFT,
    SIZE,
    WEIGHTS,
    ZERO,
    X,
    explained,
    norm,
    site,
)


def test_the_norm_of_numbers_by_hand() -> None:
    # 1, 2, 3, 4 has the mean 2.5, the variance 1.25 and the mean square 7.5.
    x = np.tile(np.array([1.0, 2.0, 3.0, 4.0]), (2, 5, 1)) * np.arange(1, 11).reshape(2, 5, 1)
    a, b = x.copy(), x.copy()
    for at in np.ndindex(2, 5):
        factor = x[at][0]
        a[at] = (x[at] - 2.5 * factor) / math.sqrt(1.25 * factor**2 + 1e-1)
        b[at] = x[at] / math.sqrt(7.5 * factor**2 + 1e-1)
    found = explained(site(a, b, x, held_a={}))
    assert (found.cause, found.text) == ("norm-kind", "the norm is a layer norm in a and a root-mean-square norm in b")


HEADS, HEAD = 3, 8
WIDE = RANDOM.normal(size=(2, 5, HEADS * HEAD)) * RANDOM.uniform(0.2, 2, size=(2, 5, HEADS * HEAD)) + 0.3
WIDE_GAIN = 1 + 0.4 * RANDOM.normal(size=HEADS * HEAD)


def normed_in_parts(size: int, *, centred: bool = False) -> np.ndarray:
    """Return the norm of WIDE of which so many neighbouring features are normalised together."""
    parts = WIDE.reshape(2, 5, -1, size)
    unit = norm(parts, 1e-6, np.ones(size), np.zeros(size), centred=centred)
    return unit.reshape(WIDE.shape) * WIDE_GAIN


@pytest.mark.parametrize("epsilons", [None, 1e-6])
@pytest.mark.parametrize(("first", "second"), [(HEADS * HEAD, HEAD), (HEAD, HEADS * HEAD), (HEAD, HEAD // 2)])
def test_norms_of_all_features_and_of_each_head_are_told_apart(first: int, second: int, epsilons: float | None) -> None:
    """OLMo 2 normalises all heads together, with a gain for each feature of all."""
    a, b = normed_in_parts(first), normed_in_parts(second)
    declared = ({"epsilon": epsilons},) * 2
    found = explained(site(a, b, WIDE, held_a={"norm.gain": WIDE_GAIN}, declared=declared))
    assert (found.cause, found.text) == (
        "norm-kind",
        f"features that are normalised together {first} in a and {second} in b",
    )


def test_a_norm_of_each_head_may_have_gains_by_head() -> None:
    a, b = normed_in_parts(HEAD, centred=True), normed_in_parts(HEAD)
    found = explained(site(a, b, WIDE, held_a={"norm.gain": WIDE_GAIN.reshape(HEADS, HEAD)}))
    assert found.text == "the norm is a layer norm in a and a root-mean-square norm in b"


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize(("first", "second"), [(1e-5, 1e-3), (1e-3, 1e-5), (1e-6, 1e-1), (1e-12, 1e-6)])
def test_both_epsilons_are_named(first: float, second: float, centred: bool) -> None:
    x = X * 1e-2 if max(first, second) < 1e-4 else X
    weights = WEIGHTS if centred else {"norm.gain": GAIN}
    shift = SHIFT if centred else ZERO
    at = site(norm(x, first, GAIN, shift, centred=centred), norm(x, second, GAIN, shift, centred=centred), x)
    at = site(at.a, at.b, x, held_a=weights)
    found = explained(at)
    assert found.cause == "layer-norm-epsilon"
    assert found.text.startswith("epsilon ")
    assert [float(value) for value in found.values] == pytest.approx([first, second], rel=1e-2, abs=1e-10)


def test_the_bias_may_be_the_first_weight() -> None:
    weights = {"norm.bias": SHIFT, "norm.gain": GAIN}
    found = explained(site(norm(X, 1e-5), norm(X, 1e-3), held_a=weights))
    assert found.text == "epsilon 1e-05 in a and 0.001 in b"


def test_epsilons_that_are_declared_are_preferred() -> None:
    first, second = norm(X, 1.05e-5), norm(X, 2.9e-3)
    at = site(first, second, declared=({"epsilon": 1.05e-5}, {"epsilon": 2.9e-3}))
    assert explained(at).text == "epsilon 1.05e-05 in a and 0.0029 in b"


def test_an_epsilon_that_b_declares_is_taken_where_noise_hides_the_best() -> None:
    noise = 1 + 3e-5 * np.random.default_rng(1).normal(size=X.shape)
    at = site(A, norm(X, 1.06e-4) * noise, declared=({}, {"epsilon": 1.05e-4}))
    assert Norm().explain(at)[0].text == "epsilon 1e-05 in a and 0.000105 in b"
    at = site(norm(X, 1e-3), norm(X, 1e-6) * noise, declared=({}, {"epsilon": 1e-3}))
    assert Norm().explain(at)[0].text == "epsilon 0.001 in a and 1e-06 in b"


def test_an_unusual_epsilon_is_fitted() -> None:
    assert explained(site(norm(X, 1e-5), norm(X, 0.0123))).text == "epsilon 1e-05 in a and 0.0123 in b"


def test_a_norm_without_known_weights_is_fitted() -> None:
    found = explained(site(norm(X, 1e-3), norm(X, 1e-1), held_a={}))
    assert found.cause == "layer-norm-epsilon"
    assert [float(value) for value in found.values] == pytest.approx([1e-3, 1e-1], rel=1e-2)


EPSILON = 1e-5
A = norm(X, EPSILON)
RMS = norm(X, EPSILON, GAIN, ZERO, centred=False)
PLANTED = {
    "epsilon": (A, norm(X, 1e-2), "layer-norm-epsilon", ("1e-05", "0.01")),
    "kind": (A, norm(X, EPSILON, centred=False), "norm-kind", ("a layer norm", "a root-mean-square norm")),
    "kind, without a bias": (A, RMS, "norm-kind", ("a layer norm", "a root-mean-square norm")),
    "kind of b": (RMS, norm(X, EPSILON, GAIN, ZERO), "norm-kind", ("a root-mean-square norm", "a layer norm")),
    "offset of b": (RMS, norm(X, EPSILON, GAIN + 1, ZERO, centred=False), "norm-offset", ("w", "1 + w")),
    "offset of a": (norm(X, EPSILON, GAIN + 1, ZERO, centred=False), RMS, "norm-offset", ("1 + w", "w")),
    "bias": (A, norm(X, EPSILON, GAIN, ZERO), "missing-bias", ("added", "missing")),
    "gain": (A, norm(X, EPSILON, ONE), "different-weight", ("those of a", "others")),
    "weights": (A, norm(X, EPSILON, ONE, ZERO), "different-weight", ("those of a", "others")),
    "missing": (A, X, "missing-norm", ("applied", "missing")),
}


@pytest.mark.parametrize(("a", "b", "cause", "values"), PLANTED.values(), ids=PLANTED)
def test_a_difference_is_named(a: np.ndarray, b: np.ndarray, cause: str, values: tuple[str, str]) -> None:
    weights = {"norm.gain": GAIN} if a is RMS or (a is not A and cause == "norm-offset") else WEIGHTS
    found = explained(site(a, b, held_a=weights))
    assert (found.cause, found.values) == (cause, values)


@pytest.mark.parametrize("epsilon", [1e-12, 1e-3])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_what_b_divides_by_is_named_with_what_a_does(number: int, epsilon: float) -> None:
    """`torch.std` and `torch.var` divide by n - 1, and some norms add ε to the deviation."""
    centre, spread = X - X.mean(-1, keepdims=True), X.std(-1, ddof=number % 2, keepdims=True)
    divisor = np.sqrt(spread**2 + epsilon) if number < 2 else spread + epsilon
    other = centre / divisor * GAIN + SHIFT
    usual = norm(X, EPSILON)
    if number == 2 and epsilon < 1e-6:  # the same as a usual norm
        assert explained(site(usual, other)).cause == "layer-norm-epsilon"
        return
    for a, b, values in ((usual, other, (0, number)), (other, usual, (number, 0))):
        found = explained(site(a, b))
        assert (found.cause, found.setting) == ("norm-kind", "the norm divides by")
        assert found.values == tuple(DIVISORS[value] for value in values)


def test_what_a_norm_of_squares_divides_by_is_named() -> None:
    other = X / (np.sqrt((X**2).mean(-1, keepdims=True)) + 1e-3) * GAIN
    found = explained(site(RMS, other, held_a={"norm.gain": GAIN}))
    assert found.cause == "norm-kind"
    assert found.text == ("the norm divides by the root of the mean square + ε in a and the root mean square + ε in b")


def test_of_vectors_of_nearly_one_length_a_divisor_is_named_rather_than_an_epsilon_that_no_model_has() -> None:
    lengths = np.random.default_rng(1).uniform(1.9, 2.1, size=(2, 5, 1))
    x = X / np.sqrt((X**2).mean(-1, keepdims=True)) * lengths
    rms = norm(x, EPSILON, shift=ZERO, centred=False)
    found = explained(site(rms, x / (lengths + EPSILON) * GAIN, x, held_a={"norm.gain": GAIN}))
    assert (found.cause, found.setting) == ("norm-kind", "the norm divides by")


@pytest.mark.parametrize(("a", "b", "cause", "values"), PLANTED.values(), ids=PLANTED)
def test_one_token_shows_a_difference_where_the_weights_are_known(
    a: np.ndarray, b: np.ndarray, cause: str, values: tuple[str, str]
) -> None:
    real = np.zeros((2, 5), bool)
    real[1, 2] = True
    weights = {"norm.gain": GAIN} if a is RMS or (a is not A and cause == "norm-offset") else WEIGHTS
    found = explained(site(a, b, held_a=weights, real=real))
    assert (found.cause, found.values) == (cause, values)


@pytest.mark.parametrize(("gain", "width"), [(6, 6), (9, 9), (3, 18), (4, 18), (18, 18)])
def test_a_norm_is_as_wide_as_its_gain(gain: int, width: int) -> None:
    at = site(np.zeros((2, 5, 18)), np.zeros((2, 5, 18)), held_a={"norm.gain": np.ones(gain)})
    assert _width(at, "norm") == width
    two = site(np.zeros((2, 5, 18)), np.zeros((2, 5, 18)), held_a={"norm.gain": np.ones(gain), "norm.bias": np.ones(2)})
    assert _width(two, "norm") == 18
    four = site(np.zeros((2, 5, 8)), np.zeros((2, 5, 8)), held_a={"norm.gain": np.ones(4)})
    assert _width(four, "norm") == 4


@pytest.mark.parametrize(("roundoffs", "named"), [(7.8, True), (8.2, False)])
def test_half_precision_is_off_by_a_few_roundoffs(roundoffs: float, named: bool) -> None:
    coarse = rounded(A, "bfloat16").astype(np.float64)
    at = site(coarse * (1 - roundoffs * 2.0**-8) ** -1, coarse)  # the difference is relative to a's output
    assert at.difference == pytest.approx(roundoffs * 2.0**-8)
    assert bool(_in_half(at, at.modules[0][1], Parameters(True, EPSILON, GAIN, SHIFT), "b")) is named


def test_texts_of_the_causes() -> None:
    assert explained(site(A, X)).text == "b lacks the norm norm"
    found = explained(site(RMS, norm(X, EPSILON, GAIN + 1, ZERO, centred=False), held_a={"norm.gain": GAIN}))
    assert found.text == "the gain is w in a and 1 + w in b"
    assert explained(site(A, norm(X, EPSILON, GAIN, ZERO))).text == "the norm's bias is added in a and missing in b"


def test_a_bias_that_a_lacks_is_named() -> None:
    at = site(norm(X, EPSILON, GAIN, ZERO), A, held_a={"norm.gain": GAIN})
    found = explained(at)
    assert (found.cause, found.text) == ("missing-bias", "the norm's bias is missing in a and added in b")
    assert explained(replace(at, b=norm(X, EPSILON, 2 * GAIN))).cause == "different-weight"


@pytest.mark.parametrize("name", ["norm.gain", "norm.bias"])
def test_another_weight_of_b_is_named(name: str) -> None:
    changed = {**WEIGHTS, name: WEIGHTS[name] + np.array([0, 0.2, 0, 0, -0.3, 0.1])}
    b = norm(X, EPSILON, changed["norm.gain"], changed["norm.bias"])
    found = explained(site(A, b, held_b=changed))
    assert found.cause == "different-weight"
    assert found.text.startswith(f"b has {name} with other values (relative L2 ")
    assert (found.setting, found.values[0]) == ("norm", "a's own")


def test_another_weight_of_b_to_which_norms_add_1_is_named() -> None:
    a, b = (norm(X, EPSILON, 1 + gain, ZERO, centred=False) for gain in (GAIN, GAIN + SHIFT))
    found = explained(site(a, b, held_a={"norm.gain": GAIN}, held_b={"norm.gain": GAIN + SHIFT}))
    assert found.text.startswith("b has norm.gain with other values")


def test_both_weights_of_b_are_named() -> None:
    changed = {"norm.gain": GAIN * np.array([1, 2, 1, 3, 1, 1]), "norm.bias": SHIFT + np.array([0, 1, 0, 2, 0, 0])}
    found = explained(site(A, norm(X, EPSILON, changed["norm.gain"], changed["norm.bias"]), held_b=changed))
    assert found.text.count("b has norm.") == 2
    assert ", and b has norm.bias" in found.text


def test_rounded_weights_of_b_are_named() -> None:
    coarse = {name: rounded(values, "float16").astype(np.float64) for name, values in WEIGHTS.items()}
    a = {name: values.astype(np.float32) for name, values in WEIGHTS.items()}
    at = site(A, norm(X, EPSILON, coarse["norm.gain"], coarse["norm.bias"]), held_a=a, held_b=coarse)
    found = next(item for item in Norm().explain(at) if item.cause == "half-weights")
    assert at.off(found.predicted) < 1e-5
    assert found.text == "b has norm.gain rounded to float16, and b has norm.bias rounded to float16"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("size", [1.0, 2.0**-6])
def test_a_norm_that_is_computed_in_half_precision_is_named(dtype: str, size: float) -> None:
    a = A * size
    at = site(a, rounded(a, dtype).astype(np.float64), held_a={name: each * size for name, each in WEIGHTS.items()})
    found = next(item for item in Norm().explain(at) if item.cause == "norm-in-half")
    assert found.text == f"b rounds what norms return to {dtype}"
    assert found.values == ("float32", dtype)
    assert at.off(found.predicted) == 0
    inside = rounded(a * (1 + 2.0**-7 * np.random.default_rng(2).random(a.shape)), dtype).astype(np.float64)
    assert any(item.text == f"b computes norms in {dtype}" for item in Norm().explain(replace(at, b=inside))) is (
        dtype == "bfloat16"
    )
    far = site(a, rounded(a * 1.3, dtype).astype(np.float64))
    assert all(item.cause != "norm-in-half" for item in Norm().explain(far))


def test_half_precision_before_the_gain_and_in_a_is_named() -> None:
    def in_half(x: np.ndarray) -> np.ndarray:
        unit = norm(x, 1e-5, ONE, ZERO, centred=False)
        return np.asarray(rounded(unit, "float16").astype(np.float64) * gain)

    gain = GAIN * (np.arange(SIZE) != 2)  # a feature that is left out has all digits
    exact, weights = norm(X, 1e-5, gain, ZERO, centred=False), {"norm.gain": gain}
    texts = {}
    for side, (a, b) in {"b": (exact, in_half(X)), "a": (in_half(X), exact), "": (exact, exact * (1 + 1e-4))}.items():
        found = [item for item in Norm().explain(site(a, b, held_a=weights)) if item.cause == "norm-in-half"]
        texts[side] = [(item.text, item.values) for item in found]
    assert texts == {
        "b": [("b computes norms in float16", ("float32", "float16"))],
        "a": [("a computes norms in float16", ("float16", "float32"))],
        "": [],
    }


def test_a_norm_that_b_alone_applies_is_named() -> None:
    at = module_site(
        X, norm(X, 1e-5), {"layer": X}, key="up:input#0", held_a={"up.W": ONE}, held_b={"up.W": ONE, **WEIGHTS}
    )
    at = replace(at, matching=replace(at.matching, alone_b=("norm.gain", "norm.bias")))
    (found,) = Norm().explain(at)
    assert (found.cause, found.text) == ("missing-norm", "b applies the norm norm, and a lacks it")
    assert (found.values, found.inputs, at.off(found.predicted) < 1e-6) == (("missing", "applied"), ("layer",), True)
    assert not Norm().explain(replace(at, b=at.b * 1.1))
    (other,) = NormOfSum().explain(replace(at, b=at.b * 1.1))
    assert (other.cause, other.text) == ("norm-order", "b applies a layer norm to what a has at up, and a does not")
    assert not Norm().explain(replace(at, matching=replace(at.matching, alone_b=("norm.gain",))))
    (found,) = Norm().explain(replace(at, before=[]))
    assert (found.compute, found.inputs) == (None, ())


def test_an_unusual_epsilon_of_a_is_fitted_with_its_weights() -> None:
    found = explained(site(norm(X, 0.02), norm(X, 1e-5)))
    assert (found.cause, found.values) == ("layer-norm-epsilon", ("0.02", "1e-05"))


def test_of_epsilons_that_fit_equally_the_first_is_named() -> None:
    found = explained(site(norm(X + 9, 0.02), norm(X + 9, 1e-12), X + 9))
    assert found.values == ("0.02", "1e-12")


def test_weights_of_another_layer_are_swapped() -> None:
    at = site(norm(X, 1e-5), norm(X, 1e-5, GAIN[::-1]), held_b={"norm.gain": GAIN[::-1].copy(), "norm.bias": SHIFT})
    matches = [
        replace(match, distance=0.4, relation="equal to next.gain") if match.a == "norm.gain" else match
        for match in at.matching.matches
    ]
    at = replace(at, matching=replace(at.matching, matches=tuple(matches)))
    found = next(item for item in Norm().explain(at) if "equal to" in item.text)
    assert (found.cause, found.text) == ("swapped-weights", "b has norm.gain equal to a's next.gain")


def test_norms_of_heads_are_over_the_features_of_a_head() -> None:
    x = RANDOM.normal(size=(2, 5, 3 * SIZE)) * RANDOM.uniform(0.02, 1, size=(2, 5, 1))

    def heads(epsilon: float) -> np.ndarray:
        parts = [
            norm(x[..., start : start + SIZE], epsilon, GAIN, ZERO, centred=False) for start in (0, SIZE, 2 * SIZE)
        ]
        return np.concatenate(parts, -1)

    found = explained(site(heads(1e-5), heads(1e-2), x, held_a={"norm.gain": GAIN}))
    assert found.text == "epsilon 1e-05 in a and 0.01 in b"


def test_padding_does_not_count() -> None:
    a, b = norm(X, 1e-5), norm(X, 1e-3)
    a[1, 3:], b[1, 3:] = 77.0, -5.0
    assert explained(site(a, b)).text == "epsilon 1e-05 in a and 0.001 in b"


@pytest.mark.parametrize(
    ("other", "cause"), [("", "norm-order"), ("agrees", "missing-norm"), ("differs", "norm-order")]
)
def test_b_reads_what_is_before_the_norm(other: str, cause: str) -> None:
    """The site is the input of a module that reads the norm's output in a, as another one may do in b as well."""
    inner = [Tensor("norm:output#0", "norm", "output", 0, (), 5.0, A)]
    pairs = [Pair("norm", "norm:output#0", "norm:output#0")]
    memory = {"differing": {"up:input"}}
    if other:
        inner.append(Tensor("query:input#0", "query", "input", 0, (), 6.0, A))
        pairs.append(Pair("query:input", "query:input#0", "query:input#0"))
    if other == "differs":
        memory["differing"].add("query:input")
    at = module_site(
        A,
        X,
        {"norm": A, "norm:input": X},
        key="up:input#0",
        held_a={**WEIGHTS, "up.W": RANDOM.normal(size=(4, SIZE))},
        others=inner,
        pair=Pair("up:input", "up:input#0", "up:input#0"),
        pairs=pairs,
        memory=memory,
    )
    found = explained(at)
    assert (found.cause, found.values) == (cause, ("norm", "norm:input"))
    assert found.text == "b reads the input of the norm norm at up:input, where a reads its output"


@pytest.mark.parametrize(
    "a", [np.sin(X), X, np.tanh(A), A + X], ids=["unknown", "identity", "squashed", "with a residual"]
)
def test_what_is_no_norm_is_not_explained(a: np.ndarray) -> None:
    assert not Norm().explain(site(a, norm(X, 1e-3)))


def test_few_features_and_other_shapes_are_no_norm() -> None:
    narrow = X[..., :3]
    assert not Norm().explain(site(norm(narrow, 1e-5, GAIN[:3], SHIFT[:3]), narrow, narrow, held_a={}))
    assert not Norm().explain(site(A, A, X[..., :5]))
    assert not Norm().explain(module_site(A, X, {"other": X}, key="norm:output#0", held_a=WEIGHTS))


def test_another_function_of_b_is_not_explained() -> None:
    at = site(A, np.sin(X))
    assert all(at.off(item.predicted) > 0.1 for item in Norm().explain(at))


def test_what_is_only_near_the_input_is_no_missing_norm() -> None:
    assert all(item.cause != "missing-norm" for item in Norm().explain(site(A, X + 1e-3)))
    assert any(item.cause == "missing-norm" for item in Norm().explain(site(A, X + 1e-7)))


def test_rows_that_b_does_not_scale_look_like_another_epsilon_and_are_named() -> None:
    rows = X / 8
    table = Tensor("table#0", "table", None, 0, (), 0.0, rows, ids=np.zeros(rows.shape[:2], int))
    at = module_site(
        norm(X, 1e-6, centred=False),
        norm(rows, 1e-6, centred=False),
        {"norm:input": X, "table": rows},
        key="norm:output#0",
        held_a=WEIGHTS,
        others=[table],
    )
    found = explained(at)
    assert (found.cause, found.text) == ("scaled-lookup", "table is multiplied by 8 in a and 1 in b")
    assert found.compute is not None
    np.testing.assert_allclose(found.compute({"table": rows}.__getitem__), at.b)
    unscaled = [replace(it, values=X) for it in at.before]
    assert all(item.cause != "scaled-lookup" for item in Norm().explain(replace(at, before=unscaled)))


@pytest.mark.parametrize("factor", [math.sqrt(SIZE), 1 / math.sqrt(SIZE)])
def test_rows_that_b_alone_scales_are_named(factor: float) -> None:
    table = Tensor("table#0", "table", None, 0, (), 0.0, X, ids=np.zeros(X.shape[:2], int))
    outputs = [norm(rows, 1e-5, shift=ZERO, centred=False) for rows in (X, factor * X)]
    before = {"norm:input": X, "table": X}
    at = module_site(*outputs, before, key="norm:output#0", held_a={"norm.gain": GAIN}, others=[table])
    found = explained(at)
    assert (found.cause, found.text) == ("scaled-lookup", f"table is multiplied by 1 in a and {factor:.6g} in b")
    further = [replace(it, values=2 * it.values) if it.name == "table" else it for it in at.before]
    assert all(found.text != item.text for item in Norm().explain(replace(at, before=further)))
