"""Convolutions of a port that differ are named, with what both models do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from embgrad.comparison.hypotheses.convolution_changes import Convolving
from embgrad.comparison.hypotheses.site import Explanation
from tests.unit.comparison.hypotheses.convolved import (
    BIASES,
    KERNELS,
    RANDOM,
    WEIGHTS,
    X,
    convolve,
    named,
    relu,
    stored,
    text_site,
)
from tests.unit.comparison.hypotheses.modules import REAL, module_site

Function = Callable[[np.ndarray], np.ndarray]
BOTH = "each of convs.0 and convs.1"


def gelu(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


def tokens_alone(values: np.ndarray) -> np.ndarray:
    """Return the largest of the outputs that read tokens alone, of which the second text has two fewer."""
    return np.stack([values[0].max(0), values[1, :-2].max(0)])


def outputs(
    kernel: np.ndarray,
    bias: np.ndarray,
    act: Function = relu,
    pool: Function = lambda y: y.max(1),
    x: np.ndarray = X,
    ends: tuple[int, int] = (0, 0),
    dilation: int = 1,
) -> np.ndarray:
    return pool(act(convolve(x, kernel, bias, ends, dilation)))


def of_all(change: Function = lambda kernel: kernel, **options) -> np.ndarray:  # type: ignore[no-untyped-def]
    return np.concatenate(
        [outputs(change(kernel), bias, **options) for kernel, bias in zip(KERNELS, BIASES, strict=True)], -1
    )


FIRST, SECOND = (outputs(kernel, bias) for kernel, bias in zip(KERNELS, BIASES, strict=True))
A = np.concatenate([FIRST, SECOND], -1)
IDENTITY: Function = lambda x: x  # noqa: E731
NO_PADDING = "adds no padding in a and pads texts"


def with_second(kernel: np.ndarray = KERNELS[1], bias: np.ndarray = BIASES[1], **options) -> np.ndarray:  # type: ignore[no-untyped-def]
    return np.concatenate([FIRST, outputs(kernel, bias, **options)], -1)


PLANTED = {
    "flipped": (of_all(lambda kernel: kernel[::-1]), "permuted-weight",
        f"b reads the taps of the kernel of {BOTH} from the last to the first"),
    "flipped in one": (with_second(KERNELS[1][::-1]), "permuted-weight",
        "b reads the taps of the kernel of convs.1 from the last to the first"),
    "transposed": (of_all(lambda kernel: kernel.swapaxes(1, 2)), "transposed-weight",
        f"the inputs and outputs of the kernel of {BOTH} are exchanged in b"),
    "reshaped": (with_second(stored(KERNELS[1]).reshape(3, 12, 12)), "permuted-weight",
        "the kernel of convs.1 is reshaped where its axes are to be permuted in b"),
    "reshaped to PyTorch's": (with_second(stored(KERNELS[1].reshape(12, 12, 3))), "permuted-weight",
        "the kernel of convs.1 is reshaped where its axes are to be permuted in b"),
    "no bias": (with_second(bias=0 * BIASES[1]), "missing-bias", "b adds no bias in convs.1"),
    "as many outputs as tokens": (
        np.concatenate([outputs(KERNELS[0], BIASES[0], ends=(0, 1)), outputs(KERNELS[1], BIASES[1], ends=(1, 1))], -1),
        "convolution",
        f"{BOTH} {NO_PADDING} at both ends to outputs of their length in b",
    ),
    "causal": (
        np.concatenate([outputs(KERNELS[0], BIASES[0], ends=(1, 0)), outputs(KERNELS[1], BIASES[1], ends=(2, 0))], -1),
        "convolution",
        f"{BOTH} {NO_PADDING} in front alone in b",
    ),
    "dilated": (with_second(dilation=2), "convolution", "the dilation of convs.1 is 1 in a and 2 in b"),
    "masked": (of_all(x=X * REAL[..., None]), "mask-ignored",
        f"b sets the inputs of {BOTH} to zero at padding tokens, and a does not"),
    "linear": (of_all(act=IDENTITY), "activation", f"the activation of {BOTH} is ReLU in a and missing in b"),
    "GELU in one": (with_second(act=gelu), "activation",
        "the activation of convs.1 is ReLU in a and GELU by the tanh approximation in b"),
    "mean": (of_all(pool=lambda y: y.mean(1)), "pooling",
        f"the pooled vector of {BOTH} is the largest over all positions in a and the mean over all positions in b"),
    "real tokens alone": (of_all(pool=tokens_alone), "pooling",
        f"the pooled vector of {BOTH} is the largest over all positions in a and the largest over tokens in b"),
    "turned": (np.concatenate([SECOND, FIRST], -1), "permuted-weight",
        "the outputs of convs.0 and convs.1 follow one another in a, and in b those of convs.1 and convs.0"),
    "in turn": (np.stack([FIRST, SECOND], -1).reshape(2, -1), "permuted-weight",
        "the outputs of convs.0 and convs.1 follow one another in a, and stand feature by feature in turn in b"),
    "another's bias": (with_second(bias=BIASES[0]), "swapped-weights", "convs.1 has the bias of convs.0 in b"),
}  # fmt: skip


@pytest.mark.parametrize(("b", "cause", "text"), PLANTED.values(), ids=PLANTED)
def test_a_difference_is_named(b: np.ndarray, cause: str, text: str) -> None:
    found = named(text_site(A, b))
    assert (found.cause, found.text, found.also) == (cause, text, ())
    assert found.inputs == ("words",)


TURNED = {
    "masked": f"a sets the inputs of {BOTH} to zero at padding tokens, and b does not",
    "dilated": "the dilation of convs.1 is 2 in a and 1 in b",
    "linear": f"the activation of {BOTH} is missing in a and ReLU in b",
    "mean": f"the pooled vector of {BOTH} is the mean over all positions in a and the largest over all positions in b",
}


@pytest.mark.parametrize("label", TURNED)
def test_a_difference_of_the_reference_is_named(label: str) -> None:
    found = named(text_site(PLANTED[label][0], A))
    assert (found.cause, found.text) == (PLANTED[label][1], TURNED[label])


def test_padding_of_the_reference_is_named() -> None:
    pairs = zip(KERNELS, BIASES, ((1, 0), (2, 0)), strict=True)
    a = np.concatenate([relu(convolve(X, *each) + 4).mean(1) for each in pairs], -1)
    b = np.concatenate([relu(convolve(X, *each) + 4).mean(1) for each in zip(KERNELS, BIASES, strict=True)], -1)
    found = named(text_site(a, b, {name: values + 4 * ("bias" in name) for name, values in WEIGHTS.items()}))
    text = f"{BOTH} pads texts in front alone in a and adds no padding in b"
    assert (found.cause, found.text) == ("convolution", text)


def test_two_kinds_of_gelu_have_a_cause_of_their_own() -> None:
    a, b = of_all(act=gelu), of_all(act=lambda x: x / (1 + np.exp(-1.702 * x)))
    found = named(text_site(a, b))
    assert (found.cause, found.text) == (
        "gelu",
        f"the activation of {BOTH} is GELU by the tanh approximation in a and GELU by the logistic approximation in b",
    )


@pytest.mark.parametrize("is_turned", [False, True])
def test_the_order_of_activation_and_pooling_is_named(is_turned: bool) -> None:
    biases = {name: values + 4 * ("bias" in name) for name, values in WEIGHTS.items()}
    pairs = list(zip(KERNELS, BIASES, strict=True))
    before = np.concatenate([relu(convolve(X, kernel, bias + 4)).mean(1) for kernel, bias in pairs], -1)
    behind = np.concatenate([relu(convolve(X, kernel, bias + 4).mean(1)) for kernel, bias in pairs], -1)
    ends = (behind, before) if is_turned else (before, behind)
    words = ("behind", "before") if is_turned else ("before", "behind")
    found = named(text_site(*ends, biases))
    text = f"the activation of {BOTH} comes {words[0]} the pooling in a and {words[1]} it in b"
    assert (found.cause, found.text) == ("pooling", text)


def test_convolutions_may_have_other_numbers_of_outputs() -> None:
    kernel, bias = KERNELS[1][..., :5], BIASES[1][:5]
    held = {**WEIGHTS, "convs.1.weight": stored(kernel), "convs.1.bias": bias}
    a = np.concatenate([FIRST, outputs(kernel, bias)], -1)
    found = named(text_site(a, np.concatenate([FIRST, outputs(kernel[::-1], bias)], -1), held))
    assert found.text == "b reads the taps of the kernel of convs.1 from the last to the first"
    found = named(text_site(a, np.concatenate([outputs(kernel, bias), FIRST], -1), held))
    assert found.text.endswith("in b those of convs.1 and convs.0")


def test_three_convolutions_may_stand_in_any_order() -> None:
    kernel = 2 * KERNELS[0]
    third = outputs(kernel, BIASES[1])
    held = {**WEIGHTS, "convs.2.weight": stored(kernel), "convs.2.bias": BIASES[1]}
    a, b = (np.concatenate(parts, -1) for parts in ((FIRST, SECOND, third), (FIRST, third, SECOND)))
    assert named(text_site(a, b, held)).text.endswith("in b those of convs.0, convs.2 and convs.1")


def test_convolutions_with_other_activations_are_named_by_themselves() -> None:
    a = np.concatenate([outputs(KERNELS[0], BIASES[0], np.tanh), SECOND], -1)
    found = named(text_site(a, of_all(act=gelu)))
    assert {found.text, *(other.text for other in found.also)} == {
        "the activation of convs.0 is tanh in a and GELU by the tanh approximation in b",
        "the activation of convs.1 is ReLU in a and GELU by the tanh approximation in b",
    }


def test_convolutions_with_other_padding_are_named_by_themselves() -> None:
    def means(*ends: tuple[int, int]) -> np.ndarray:
        each = zip(KERNELS, BIASES, ends, strict=True)
        return np.concatenate([convolve(X, *own).mean(1) for own in each], -1)

    found = named(text_site(means((0, 0), (1, 1)), means((1, 0), (2, 0))))
    assert {found.text, *(other.text for other in found.also)} == {
        f"convs.0 {NO_PADDING} in front alone in b",
        "convs.1 pads texts at both ends to outputs of their length in a and pads texts in front alone in b",
    }


def causes(found: Explanation) -> set[str]:
    return {found.cause, *(other.cause for other in found.also)}


def test_two_differences_are_named() -> None:
    b = of_all(lambda kernel: kernel[::-1], pool=lambda y: y.mean(1))
    assert causes(named(text_site(A, b))) == {"permuted-weight", "pooling"}
    b = np.concatenate([outputs(KERNELS[0], 0 * BIASES[0]), outputs(KERNELS[1], BIASES[1], gelu)], -1)
    assert causes(named(text_site(A, b))) == {"missing-bias", "activation"}


def test_weights_of_the_port_that_differ_are_named() -> None:
    kernel = KERNELS[1] + 0.1 * RANDOM.normal(size=KERNELS[1].shape)
    held = {**WEIGHTS, "convs.1.weight": stored(kernel)}
    found = named(text_site(A, with_second(kernel), held_b=held))
    assert found.cause == "different-weight"
    assert found.text.startswith("b has convs.1.weight with other values")
    held = {**WEIGHTS, "convs.1.bias": 2 * BIASES[1]}
    found = named(text_site(A, with_second(bias=2 * BIASES[1]), held_b=held))
    assert (found.cause, found.text) == ("different-weight", "b has convs.1.bias times 2")


def test_weights_of_the_port_may_be_stored_in_another_order() -> None:
    kernel = KERNELS[1] + 0.1 * RANDOM.normal(size=KERNELS[1].shape)
    found = named(text_site(A, with_second(kernel), held_b={**WEIGHTS, "convs.1.weight": kernel}))
    assert found.text.startswith("b has convs.1.weight with other values")


def test_a_convolution_may_have_the_weights_of_another() -> None:
    """Where both have as many taps, their kernels may be exchanged, which are two differences."""
    kernels = (KERNELS[1], RANDOM.normal(size=KERNELS[1].shape))
    held = {**WEIGHTS, "convs.0.weight": stored(kernels[0]), "convs.1.weight": stored(kernels[1])}
    a = np.concatenate([outputs(*each) for each in zip(kernels, BIASES, strict=True)], -1)
    twice = np.concatenate([outputs(kernels[1], BIASES[1])] * 2, -1)
    found = named(text_site(a, twice, held))
    assert (found.cause, found.text) == ("swapped-weights", "convs.0 has the kernel and the bias of convs.1 in b")
    exchanged = np.concatenate([outputs(*each) for each in zip(kernels[::-1], BIASES, strict=True)], -1)
    found = named(text_site(a, exchanged, held))
    assert {found.text, *(other.text for other in found.also)} == {
        "convs.0 has the kernel of convs.1 in b",
        "convs.1 has the kernel of convs.0 in b",
    }


def test_one_convolution_of_each_token_is_named() -> None:
    held = {"mixed.weight": stored(KERNELS[1]), "mixed.bias": BIASES[1]}
    a, b = (convolve(X, KERNELS[1], BIASES[1], ends) for ends in ((1, 1), (2, 0)))
    found = named(module_site(a, b, {"mixed:input": X}, key="mixed:output#0", held_a=held))
    assert (found.cause, found.text) == (
        "convolution",
        "mixed pads texts at both ends to outputs of their length in a and pads texts in front alone in b",
    )


@pytest.mark.parametrize("is_turned", [False, True])
def test_an_activation_inside_of_one_module_is_no_difference(is_turned: bool) -> None:
    """Keras's module applies ReLU, which PyTorch's does not; that the taps are turned is a difference."""
    held = {"mixed.weight": stored(KERNELS[1]), "mixed.bias": BIASES[1]}
    a, b = (convolve(X, kernel, BIASES[1], (1, 1)) for kernel in (KERNELS[1], KERNELS[1][::-1]))
    a, b = (a, relu(b)) if is_turned else (relu(a), b)
    found = named(module_site(a, b, {"mixed:input": X}, key="mixed:output#0", held_a=held))
    text = "b reads the taps of the kernel of mixed from the last to the first"
    assert (found.cause, found.text, found.also) == ("permuted-weight", text, ())


def test_kernels_of_one_module_are_named_by_themselves() -> None:
    held = {"all." + name.replace(".", "_"): values for name, values in WEIGHTS.items()}
    assert named(text_site(A, with_second(KERNELS[1][::-1]), held)).text == (
        "b reads the taps of the kernel of all.convs_1_weight from the last to the first"
    )


@pytest.mark.parametrize("b", [A**2 + A, A + 1e-3 * RANDOM.normal(size=A.shape), RANDOM.normal(size=A.shape)])
def test_nothing_else_is_named(b: np.ndarray) -> None:
    assert not Convolving().explain(text_site(A, b))


KERNEL = RANDOM.normal(size=(3, 12))
HALVES = np.concatenate([X, RANDOM.normal(size=X.shape)], -1)


def depthwise(x: np.ndarray, ends: tuple[int, int] = (2, 0)) -> np.ndarray:
    return convolve(x, KERNEL[:, None] * np.eye(12), np.zeros(12), ends)


@pytest.mark.parametrize(
    ("b", "cause", "text"),
    [
        (depthwise(HALVES[..., 12:]), "gate-swapped",
            "mixer.conv reads the first half of in in a and the second half of in in b"),
        (depthwise(X, (1, 1)), "convolution",
            "mixer.conv pads texts in front alone in a and pads texts at both ends to outputs of their length in b"),
    ],
)  # fmt: skip
def test_a_half_of_what_both_models_have_is_read(b: np.ndarray, cause: str, text: str) -> None:
    before = {"mixer.conv:input": X * REAL[..., None], "mixer.in": HALVES}  # the port sets nothing to zero at padding
    held = {"mixer.conv.weight": KERNEL.T[:, None]}
    a = depthwise(X)
    found = named(module_site(a, b, before, key="mixer.narrow:input#0", held_a=held, alone=["mixer.conv:input"]))
    assert (found.cause, found.text, found.inputs) == (cause, text, ("mixer.in",))


def test_nothing_is_said_of_a_tensor_that_is_no_other_half() -> None:
    other = np.random.default_rng(1).normal(size=X.shape)
    before = {"mixer.conv:input": X, "mixer.in": HALVES, "mixer.z": other}
    held = {"mixer.conv.weight": KERNEL.T[:, None]}
    further = {"key": "mixer.narrow:input#0", "held_a": held, "alone": ["mixer.conv:input"]}
    assert Convolving().explain(module_site(depthwise(X), depthwise(other), before, **further)) == []
