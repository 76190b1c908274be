"""Recurrent layers are recognised by the reference's output, and what the port changes in them is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embgrad import TokenBatch
from embgrad.comparison.hypotheses.pooling import POOLS
from embgrad.comparison.hypotheses.recurrent import Recurrent
from embgrad.comparison.hypotheses.recurrent_changes import changes_of
from embgrad.comparison.hypotheses.recurrent_fit import fits
from embgrad.comparison.hypotheses.site import Site
from embgrad.comparison.recording import Tensor
from tests.unit.comparison.hypotheses.modules import REAL, best, module_site
from tests.unit.comparison.hypotheses.recurrences import LETTERS, Weights, both, run, weights_of

RANDOM = np.random.default_rng(0)
SIZE = 4
X = RANDOM.normal(size=(*REAL.shape, 3))
SQUARE = RANDOM.normal(size=(*REAL.shape, SIZE))  # as many features as a state has
CELLS = {kind: [weights_of(kind, 3, SIZE, RANDOM) for _ in range(2)] for kind in LETTERS}
LSTM, GRU, RNN = (cells[0] for cells in CELLS.values())
EVEN = {kind: [weights_of(kind, SIZE, SIZE, RANDOM) for _ in range(3)] for kind in LETTERS}
ALL = REAL | True
Held = dict[str, np.ndarray]
PARTS = {"weight_ih": "entry", "weight_hh": "state", "bias_ih": "bias", "bias_hh": "state_bias"}


def torch(*cells: Weights, letters: str = "") -> Held:
    """Return the weights of cells as PyTorch holds them, with the gates in an order."""
    return {
        f"rnn.{name}_{number}": cell.stacked(part, letters or "".join(cell.entry))
        for number, cell in enumerate(cells)
        for name, part in PARTS.items()
    }


def without(weights: Weights, *parts: str) -> Weights:
    """Return the weights with zeros in some parts."""
    for part in parts:
        weights = weights.changed(part, np.zeros_like)
    return weights


def site(a: np.ndarray, b: np.ndarray, held: Held, x: np.ndarray = X, real: np.ndarray = REAL, **further: Any) -> Site:
    """Return a site at the output of a module that reads texts, of which some positions are real."""
    options = {"before": {"rnn:input": x}, "key": "rnn:output#0", "held_a": held, **further}
    at = module_site(a, b, **options)
    batch = TokenBatch(np.ones(real.shape, int), real.astype(int))
    first, second = (replace(side, batch=batch) for side in at.recordings)
    return replace(at, real=real, recordings=(first, second))


def named(at: Site) -> list[tuple[str, str]]:
    """Return the causes and sentences of the explanation of a site."""
    found = best(at, Recurrent().explain(at))
    return [(each.cause, each.text) for each in (found, *found.also)]


# Which recurrence the reference computes


def test_a_recurrence_of_one_direction_has_no_changes_of_two() -> None:
    at = site(a := run(LSTM, X, REAL), a + 1, torch(LSTM))
    found = [change.sentence for change in changes_of(at, next(fits(at)))]
    assert found
    assert not any("direction" in sentence for sentence in found)


BACKWARD = [("recurrence", "rnn reads the tokens from the last to the first in one model alone")]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("width", [3, SIZE])
@pytest.mark.parametrize("biases", ["two", "one", "rows", "none"])
@pytest.mark.parametrize("kind", LETTERS)
def test_weights_may_have_several_layouts(kind: str, biases: str, width: int, turned: bool) -> None:
    weights = (CELLS if width == 3 else EVEN)[kind][0]
    weights = without(weights, *{"one": ["state_bias"], "none": ["bias", "state_bias"]}.get(biases, []))
    held = torch(weights)
    first, second = held.pop("rnn.bias_ih_0"), held.pop("rnn.bias_hh_0")
    held = {name: values.T for name, values in held.items()} if turned else held
    own = {"two": [first, second], "one": [first], "none": [], "rows": [np.stack([first, second])]}[biases]
    held |= {f"rnn.inner.b{number}": values for number, values in enumerate(own)}
    x = X if width == 3 else SQUARE
    assert named(site(run(weights, x, REAL), run(weights, x, REAL, backward=True), held, x)) == BACKWARD


def hard(slope: float) -> Any:
    return lambda x: np.clip(slope * x + 0.5, 0, 1)


FORMS: dict[str, tuple[Weights, dict[str, Any], str]] = {
    "backward": (LSTM, {"backward": True}, "ifgo"),
    "LSTM of TensorFlow's first version": (LSTM, {}, "igfo"),
    "hard LSTM": (LSTM, {"squash": hard(0.2)}, "fiog"),
    "GRU of Keras": (GRU, {}, "zrg"),
    "first GRU of Keras": (GRU, {"resets_state": True, "squash": hard(0.2)}, "zrg"),
    "GRU that takes": (GRU, {"takes": True}, "rzg"),
    "GRU of the paper that takes": (GRU, {"takes": True, "resets_state": True, "squash": hard(1 / 6)}, "rzg"),
    "ReLU": (RNN, {"candidate": lambda x: np.maximum(x, 0)}, "g"),
}


@pytest.mark.parametrize(("weights", "options", "letters"), FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("mask", [REAL, ALL], ids=["padding stops", "padding counts"])
def test_cells_of_several_forms_are_recognised(
    weights: Weights, options: dict[str, Any], letters: str, mask: np.ndarray
) -> None:
    a, b = (run(cell, X, mask, **options) for cell in (weights, without(weights, "bias", "state_bias")))
    assert named(site(a, b, torch(weights, letters=letters))) == [("missing-bias", "b adds no bias in rnn")]


JOINS = {
    "side by side": lambda first, second: np.concatenate([first, second], -1),
    "side by side, the second first": lambda first, second: np.concatenate([second, first], -1),
    "summed": lambda first, second: first + second,
    "averaged": lambda first, second: (first + second) / 2,
}


@pytest.mark.parametrize(("first", "second"), [[*JOINS][:2], [*JOINS][2:], [*JOINS][:1:-1]])
def test_the_ways_of_joining_two_directions_are_named(first: str, second: str) -> None:
    a, b = (JOINS[join](*both(*CELLS["GRU"], X, REAL)) for join in (first, second))
    text = f"the outputs of both directions of rnn are {first} in a and {second} in b"
    assert named(site(a, b, torch(*CELLS["GRU"]))) == [("recurrence", text)]


# What the port changes in a cell


def twice(weights: Weights, *parts: str) -> Weights:
    for part in parts:
        weights = weights.changed(part, lambda x: 2 * x)
    return weights


def reshaped(weights: Weights, part: str, letters: str, *, turned: bool = False) -> Weights:
    """Return the weights with a matrix read as of other axes than those with which it is stored."""
    stored = weights.stacked(part, letters)
    read = stored.T.reshape(stored.shape) if turned else stored.reshape(stored.shape[::-1]).T
    return weights._replace(**{part: dict(zip(letters, np.split(read, len(letters)), strict=True))})


UNRESET = GRU._replace(
    bias={gate: GRU.bias[gate] + GRU.state_bias[gate] for gate in "rzg"},
    state_bias=without(GRU, "state_bias").state_bias,
)
BIASES = ("bias", "state_bias")
WEIGHT_CHANGES = {
    "b adds no bias in rnn": ("missing-bias", RNN, without(RNN, *BIASES)),
    "b adds the bias of the inputs alone in rnn": ("missing-bias", RNN, without(RNN, "state_bias")),
    "b adds the bias of the state alone in rnn": ("missing-bias", GRU, without(GRU, "bias")),
    "b adds the bias of the inputs twice in rnn": ("different-weight", LSTM, twice(LSTM, "bias")),
    "b adds the bias of the state twice in rnn": ("different-weight", LSTM, twice(LSTM, "state_bias")),
    "b adds the biases twice in rnn": ("different-weight", GRU, twice(GRU, *BIASES)),
    "the reset gate of rnn multiplies the state's bias of the candidate in a, and not in b": (
        "recurrence",
        GRU,
        UNRESET,
    ),
    "b adds 1 to the bias of the forget gate of rnn": (
        *("different-weight", LSTM, LSTM.changed("bias", lambda x: x + 1, "f")),
    ),
    "b subtracts 1 from the bias of the update gate of rnn": (
        *("different-weight", GRU, GRU.changed("state_bias", lambda x: x - 1, "z")),
    ),
    "the matrices of the state of rnn are transposed in b": (
        *("transposed-weight", LSTM, LSTM.changed("state", np.transpose)),
    ),
    "b takes the gates of rnn as input, candidate, forget, output, and a as input, forget, candidate, output": (
        *("permuted-weight", LSTM, LSTM.renamed("ifgo", "igfo")),
    ),
    "b takes the gates of rnn as forget, candidate, input, output, and a as input, forget, candidate, output": (
        *("permuted-weight", LSTM, LSTM.renamed("fgio", "ifgo")),
    ),
    "b takes the gates of rnn for the inputs as update, reset, candidate, and a as reset, update, candidate": (
        *("permuted-weight", GRU, GRU.renamed("zrg", "rzg", ("entry", *BIASES))),
    ),
    "b takes the gates of rnn in the matrix of the state as update, reset, candidate, and a as reset, update, candidate": (
        *("permuted-weight", GRU, GRU.renamed("zrg", "rzg", ("state",))),
    ),
    "b takes the gates of rnn in the biases as update, candidate, reset, and a as reset, update, candidate": (
        *("permuted-weight", GRU, GRU.renamed("zgr", "rzg", BIASES)),
    ),
}


@pytest.mark.parametrize("text", WEIGHT_CHANGES)
def test_what_b_makes_of_the_weights_is_named(text: str) -> None:
    cause, mine, its = WEIGHT_CHANGES[text]
    assert named(site(run(mine, X, REAL), run(its, X, REAL), torch(mine))) == [(cause, text)]


@pytest.mark.parametrize("letters", ["rzg", "zrg", "grz"])
@pytest.mark.parametrize(("part", "words"), [("entry", "inputs"), ("state", "state")])
def test_matrices_that_b_lays_out_otherwise_are_named(part: str, words: str, letters: str) -> None:
    for x, (mine, _) in ((X, CELLS["GRU"]), (SQUARE, EVEN["GRU"][:2])):
        text = f"the matrix of the {words} of rnn is reshaped where it is to be transposed in b"
        others = {text: [reshaped(mine, part, letters), reshaped(mine, part, letters, turned=True)]}
        if part == "state" or x is SQUARE:
            others[f"the matrices of the {words} of rnn are transposed in b"] = [mine.changed(part, np.transpose)]
        for sentence, cells in others.items():
            for its in cells:
                ((cause, found),) = named(site(run(mine, x, REAL), run(its, x, REAL), torch(mine, letters=letters), x))
                assert (cause, found) == ("permuted-weight" if found == text else "transposed-weight", sentence)


def test_the_blocks_of_weights_are_named_in_their_own_order() -> None:
    a, b = run(GRU, X, REAL), run(GRU.renamed("rgz", "zrg"), X, REAL)
    text = "b takes the gates of rnn as reset, candidate, update, and a as update, reset, candidate"
    assert named(site(a, b, torch(GRU, letters="zrg"))) == [("permuted-weight", text)]


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def missing(x: np.ndarray) -> np.ndarray:
    return x


LOGISTIC, SLOPED = "the logistic function", "the hard logistic function of slope 1/"
PRODUCT, STATE = "product with the state", "state before the product"
FUNCTIONS: dict[str, tuple[Weights, dict[str, Any], dict[str, Any]]] = {
    f"function of the gates of rnn is {LOGISTIC} in a and {SLOPED}6 in b": (LSTM, {}, {"squash": hard(1 / 6)}),
    f"function of the gates of rnn is {LOGISTIC} in a and tanh in b": (GRU, {}, {"squash": np.tanh}),
    f"function of the gates of rnn is {SLOPED}5 in a and {LOGISTIC} in b": (GRU, {"squash": hard(0.2)}, {}),
    "function of the candidate of rnn is tanh in a and ReLU in b": (GRU, {}, {"candidate": relu}),
    "function of the candidate of rnn is ReLU in a and tanh in b": (RNN, {"candidate": relu}, {}),
    "function of the output of rnn is tanh in a and missing in b": (LSTM, {}, {"emitted": missing}),
    "function of the candidate and the output of rnn is tanh in a and ReLU in b": (
        *(LSTM, {}, {"candidate": relu, "emitted": relu}),
    ),
    f"reset gate of rnn multiplies the {PRODUCT} in a and the {STATE} in b": (GRU, {}, {"resets_state": True}),
    f"reset gate of rnn multiplies the {STATE} in a and the {PRODUCT} in b": (GRU, {"resets_state": True}, {}),
    "update gate of rnn is the share of the old state in a and of the candidate in b": (GRU, {}, {"takes": True}),
    "update gate of rnn is the share of the candidate in a and of the old state in b": (GRU, {"takes": True}, {}),
}


@pytest.mark.parametrize("text", FUNCTIONS)
def test_functions_of_a_cell_are_named(text: str) -> None:
    weights, *options = FUNCTIONS[text]
    a, b = (run(weights, X, REAL, **each) for each in options)
    cause = "activation" if text.startswith("function") else "recurrence"
    assert named(site(a, b, torch(weights))) == [(cause, f"the {text}")]


# What differs around the cells


PADDING = {True: "runs through padding", False: "stays as it is at padding"}


@pytest.mark.parametrize("stops", [True, False])
def test_padding_that_changes_the_state_is_named(stops: bool) -> None:
    a, b = (run(LSTM, X, mask, backward=True) for mask in ((REAL, ALL) if stops else (ALL, REAL)))
    text = f"the state of rnn {PADDING[stops]} in b, not in a"
    assert named(site(a, b, torch(LSTM))) == [("mask-ignored", text)]


def test_examples_that_are_read_in_place_of_tokens_are_named() -> None:
    a, b = run(GRU, X, ALL), run(GRU, X.swapaxes(0, 1), ALL.T).swapaxes(0, 1)
    text = "rnn reads the tokens of a text one after the other in a, and the examples of the batch in b"
    assert named(site(a, b, torch(GRU))) == [("recurrence", text)]


def test_a_direction_that_is_not_turned_back_is_named() -> None:
    forward, backward = both(*CELLS["LSTM"], X, REAL)
    a, b = JOINS["side by side"](forward, backward), JOINS["side by side"](forward, backward[:, ::-1])
    text = "b does not turn the outputs of the backward direction of rnn back into the order of the tokens"
    assert named(site(a, b, torch(*CELLS["LSTM"]))) == [("recurrence", text)]


def layers(cells: Sequence[Weights], x: np.ndarray, real: np.ndarray = REAL) -> np.ndarray:
    """Return the outputs of layers of two directions, of which each holds two cells."""
    for first, second in zip(cells[::2], cells[1::2], strict=True):
        x = JOINS["side by side"](*both(first, second, x, real))
    return x


DEEP = [weights_of("RNN", 2 * SIZE, SIZE, RANDOM) for _ in range(4)]
WIDE = RANDOM.normal(size=(*REAL.shape, 2 * SIZE))
PLACES = {
    "rnn": (0, 1, 2, 3),
    "layer 1 of rnn": (2, 3),
    "the forward direction of rnn": (0, 2),
    "the backward direction of rnn": (1, 3),
    "the forward direction of layer 0 of rnn": (0,),
    "the backward direction of layer 1 of rnn": (3,),
}


@pytest.mark.parametrize("place", PLACES)
def test_the_cells_that_change_are_named(place: str) -> None:
    cells = [without(cell, "state_bias") if number in PLACES[place] else cell for number, cell in enumerate(DEEP)]
    wanted = [("missing-bias", f"b adds the bias of the inputs alone in {place}")]
    assert named(site(layers(DEEP, WIDE), layers(cells, WIDE), torch(*DEEP), WIDE)) == wanted


LAYERS = {
    "b skips layer 0 of rnn": ("missing-part", (2, 3)),
    "b skips layer 1 of rnn": ("missing-part", (0, 1)),
    "layer 1 of rnn has the weights of layer 0 in b": ("swapped-weights", (0, 1, 0, 1)),
    "layer 0 of rnn has the weights of layer 1 in b": ("swapped-weights", (2, 3, 2, 3)),
    "the weights of both directions of rnn are exchanged in b": ("swapped-weights", (1, 0, 3, 2)),
    "the weights of both directions of rnn are exchanged in b in layer 1": ("swapped-weights", (0, 1, 3, 2)),
}


@pytest.mark.parametrize("text", LAYERS)
def test_other_layers_and_directions_are_named(text: str) -> None:
    cause, taken = LAYERS[text]
    b = layers([DEEP[number] for number in taken], WIDE)
    assert named(site(layers(DEEP, WIDE), b, torch(*DEEP), WIDE)) == [(cause, text)]


def test_layers_of_one_direction_are_named() -> None:
    first, second = CELLS["LSTM"][0], EVEN["LSTM"][0]
    a, b = (run(upper, run(first, X, REAL), REAL) for upper in (second, without(second, "bias")))
    text = "b adds the bias of the state alone in layer 1 of rnn"
    assert named(site(a, b, torch(first, second))) == [("missing-bias", text)]


LAST, FIRST = "the last state forward and the first one backward", "the vector of the last token"


@pytest.mark.parametrize("count", [1, 2, 5])
def test_pooled_states_are_recognised_whatever_returns_them(count: int) -> None:
    """A module that reads packed texts returns no tensor of positions."""
    cells, others = CELLS["LSTM"], [without(cell, "bias") for cell in CELLS["LSTM"]]
    x, real = RANDOM.normal(size=(count, 5, 3)), np.arange(5) < np.array([4, 5, 2, 5, 3])[:count, None]
    a, other, b = (
        POOLS[pool](layers(weights, x, real), real)[:, None]
        for pool, weights in ((LAST, cells), (FIRST, cells), (LAST, others))
    )
    before = {"table": x[:, :2], "rnn:input": x}
    for its, wanted in (
        (other, ("pooling", f"the pooled vector is {LAST} in a and {FIRST} in b")),
        (b, ("missing-bias", "b adds the bias of the state alone in rnn")),
    ):
        assert named(site(a, its, torch(*cells), real=real, before=before, key="head:input#0")) == [wanted]


# Weights of b with other values


def test_a_weight_of_b_with_other_values_is_named() -> None:
    cells = CELLS["RNN"]
    for name, part in PARTS.items():
        b = [cells[0], cells[1].changed(part, lambda x: x + RANDOM.normal(size=x.shape))]
        ((cause, text),) = named(site(layers(cells, X), layers(b, X), torch(*cells), held_b=torch(*b)))
        assert cause == "different-weight"
        assert text.startswith(f"b has rnn.{name}_1 with other values (relative L2")


def keras(weights: Weights, letters: str) -> Held:
    """Return the weights as Keras holds them, (input, gate and feature), with both biases as the rows of one."""
    matrices = {f"rnn.{part}": weights.stacked(part, letters).T for part in ("entry", "state")}
    return {**matrices, "rnn.bias": np.stack([weights.stacked(part, letters) for part in BIASES])}


@pytest.mark.parametrize("part", ["entry", "state", "bias"])
@pytest.mark.parametrize("turned", [False, True])
def test_a_weight_with_other_values_may_have_another_layout(part: str, turned: bool) -> None:
    other = GRU.changed(part, lambda x: x + RANDOM.normal(size=x.shape))
    if part == "bias":
        other = other.changed("state_bias", lambda x: x + RANDOM.normal(size=x.shape))
    held = {name: values.T if turned and "bias" not in name else values for name, values in keras(GRU, "zrg").items()}
    ((cause, text),) = named(site(run(GRU, X, REAL), run(other, X, REAL), held, held_b=keras(other, "zrg")))
    assert cause == "different-weight"
    assert text.startswith(f"b has rnn.{part} with other values (relative L2")


def test_weights_in_half_precision_are_named() -> None:
    half = RNN.changed("entry", lambda x: x.astype(np.float16).astype(np.float64))
    at = site(run(RNN, X, REAL), run(half, X, REAL), torch(RNN), held_b=torch(half))
    assert named(at) == [("half-weights", "b has rnn.weight_ih_0 rounded to float16")]


# Several changes, and none


FORGETS = ("different-weight", "b adds 1 to the bias of the forget gate of rnn")
IGNORES = ("mask-ignored", "the state of rnn runs through padding in b, not in a")
TRANSPOSED = ("transposed-weight", "the matrices of the state of rnn are transposed in b")
LINEAR = ("activation", "the function of the output of rnn is tanh in a and missing in b")


def test_two_and_three_changes_are_named_together() -> None:
    other, turned = LSTM.changed("bias", lambda x: x + 1, "f"), LSTM.changed("state", np.transpose)
    a, b, c = (
        run(weights, X, mask, backward=True, **options)
        for weights, mask, options in ((LSTM, REAL, {}), (other, ALL, {}), (turned, ALL, {"emitted": missing}))
    )
    assert sorted(named(site(a, b, torch(LSTM)))) == [FORGETS, IGNORES]
    assert sorted(named(site(a, c, torch(LSTM)))) == [LINEAR, IGNORES, TRANSPOSED]


def test_changes_that_few_texts_show_are_found() -> None:
    """The fourth text alone has padding, and tokens after the first twelve count."""
    x, real = RANDOM.normal(size=(5, 15, 3)), np.ones((5, 15), bool)
    real[3, 5:] = False
    mine, its = CELLS["RNN"], [without(cell, "bias") for cell in CELLS["RNN"]]
    at = site(layers(mine, x, real), layers(its, x, real | True), torch(*mine), x, real)
    assert sorted(named(at)) == [IGNORES, ("missing-bias", "b adds the bias of the state alone in rnn")]


@pytest.mark.parametrize("weights", [LSTM, GRU, RNN], ids=LETTERS)
def test_nothing_is_named_where_b_computes_something_else(weights: Weights) -> None:
    a = run(weights, X, REAL)
    assert Recurrent().explain(site(a, np.sin(a), torch(weights))) == []


A, B, HELD = run(LSTM, X, REAL), run(LSTM, X, REAL, backward=True), torch(LSTM)
OTHERS: dict[str, dict[str, Any]] = {
    "another function": {"a": A + 0.01 * X[..., :1]},
    "weights of another module": {"held": {name.replace("rnn", "rnns"): values for name, values in HELD.items()}},
    "a further weight": {"held": {**HELD, "rnn.further": np.ones(5)}},
    "a further matrix": {"held": {**HELD, "rnn.further": np.ones((5, 4))}},
    "three biases": {"held": {**HELD, "rnn.further": np.ones(4 * SIZE)}},
    "biases alone": {"held": {name: values for name, values in HELD.items() if "bias" in name}},
    "matrices of another size": {"held": torch(EVEN["LSTM"][0])},
    "another input": {"x": X + 0.1},
    "an input of fewer tokens": {"x": X[:, :4]},
}


@pytest.mark.parametrize("options", OTHERS.values(), ids=OTHERS)
def test_nothing_is_named_where_a_computes_no_recurrence(options: dict[str, Any]) -> None:
    assert Recurrent().explain(site(**{"a": A, "b": B, "held": HELD, **options})) == []


def test_a_bias_of_one_of_two_layers_alone_is_no_recurrence() -> None:
    cells = [without(cell, *BIASES) for cell in (CELLS["GRU"][0], EVEN["GRU"][0])]
    held = {name: values for name, values in torch(*cells).items() if "bias" not in name}
    a, b = (run(cells[1], run(cells[0], X, REAL, backward=back), REAL, backward=back) for back in (False, True))
    assert named(site(a, b, held)) == BACKWARD
    assert Recurrent().explain(site(a, b, {**held, "rnn.bias": np.ones(3 * SIZE)})) == []


def test_the_module_may_be_inside_of_the_one_that_ends_the_site() -> None:
    """Each returns the same tensor, and the outer one reads another."""
    own = Tensor("rnn:output#0", "rnn", "output", 0, (), 1.0, A)
    before = {"outer:input": 2 * X, "rnn:input": X}
    assert named(site(A, B, HELD, before=before, key="outer:output#0", others=[own])) == BACKWARD


def test_the_whole_model_may_be_a_recurrence() -> None:
    ((cause, _),) = named(site(A, B, HELD, before={":input": X}, key=":output#0"))
    assert cause == "recurrence"
