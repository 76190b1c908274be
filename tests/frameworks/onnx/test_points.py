"""Modules and lookups that are read off a graph: by the scopes in names, or else by the weights that steps read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import embgrad
from embgrad.backend.protocol import Request
from embgrad.backend.registry import bind
from embgrad.engine.weights import weights_of
from embgrad.testing.examples import close, example_batch, example_weights
from tests.contract.conformance.harness_onnx import Builder

BATCH = example_batch()
WEIGHTS = example_weights()
ROWS = WEIGHTS["E"][BATCH.ids]


def builder(**weights: np.ndarray) -> Builder:
    return Builder({**WEIGHTS, **weights}, "float64")


def values(model: Any, *keys: str) -> list[np.ndarray]:
    run = bind(model).run(BATCH, Request(keys, pullback=False))
    return [run.points[key].activation for key in keys]


def paths(model: Any) -> list[str]:
    return [point.path for point in embgrad.points(model, BATCH) if point.lookup is None]


def modules(model: Any) -> dict[str, str]:
    return {weight.name: weight.module for weight in weights_of(model)}


# Graphs without scopes


def test_a_product_and_its_bias_are_one_module() -> None:
    b = builder()
    b.classify(b.bend(b.lookup()))
    inside, outside = values(b.model(), "W1:input#0", "W1:output#0")
    close(inside, ROWS, 1e-15)
    close(outside, ROWS @ WEIGHTS["W1"] + WEIGHTS["b1"], 1e-12)
    assert modules(b.model()) == {"E": "E", "W1": "W1", "b1": "W1", "W": "W", "b": "W"}


@pytest.mark.parametrize("form", ["Transpose", "Reshape"])
def test_a_bias_on_the_left_and_a_matrix_in_another_form(form: str) -> None:
    b = builder(W1=WEIGHTS["W1"].T if form == "Transpose" else WEIGHTS["W1"].ravel())
    matrix = b(form, "W1", perm=[1, 0]) if form == "Transpose" else b(form, "W1", b.constant(np.array([5, 5])))
    product = b("MatMul", b.lookup(), matrix)
    b.classify(b("Add", "b1", product))
    close(values(b.model(), "W1:output#0")[0], ROWS @ WEIGHTS["W1"] + WEIGHTS["b1"], 1e-12)


def test_a_product_that_is_used_twice_ends_before_its_bias() -> None:
    b = builder()
    product = b("MatMul", b.lookup(), "W1")
    b.classify(b("Add", b("Add", product, "b1"), product))
    close(values(b.model(), "W1:output#0", "b1:output#0")[0], ROWS @ WEIGHTS["W1"], 1e-12)


def test_a_bias_behind_a_reshape_belongs_to_its_product() -> None:
    b = builder()
    rows = b("Reshape", b.lookup(), b.constant(np.array([-1, 5])))
    shaped = b(
        "Reshape", b("MatMul", rows, "W1"), b("Concat", b("Shape", "input_ids"), b.constant(np.array([5])), axis=0)
    )
    b.classify(b("Sin", b("Add", shaped, "b1")))
    close(values(b.model(), "W1:output#0")[0], ROWS @ WEIGHTS["W1"] + WEIGHTS["b1"], 1e-12)
    assert modules(b.model())["b1"] == "W1"


def test_a_sum_of_two_computed_tensors_is_no_bias() -> None:
    b = builder()
    rows = b.lookup()
    b.classify(b("Add", b("MatMul", rows, "W1"), rows))
    close(values(b.model(), "W1:output#0")[0], ROWS @ WEIGHTS["W1"], 1e-12)


def test_modules_are_named_by_their_weights() -> None:
    names = {"enc.0.proj.weight": WEIGHTS["W1"], "enc.0.proj.bias": WEIGHTS["b1"], "emb.weight": WEIGHTS["E"]}
    b = builder(**names)
    b.classify(b("Add", b("MatMul", b.lookup("emb.weight"), "enc.0.proj.weight"), "enc.0.proj.bias"))
    assert paths(b.model()) == ["enc.0.proj", "W"]
    (word,) = [point for point in embgrad.points(b.model(), BATCH) if "word" in point.roles]
    assert word.path == "emb"


def test_names_that_an_exporter_made_up_are_passed_over() -> None:
    b = builder(**{"onnx::MatMul_12": WEIGHTS["W1"], "enc.proj.bias": WEIGHTS["b1"]})
    b.classify(b("Add", b("MatMul", b.lookup(), "onnx::MatMul_12"), "enc.proj.bias"))
    assert paths(b.model()) == ["enc.proj", "W"]
    b = builder(**{"onnx::MatMul_12": WEIGHTS["W1"]})
    b.classify(b("MatMul", b.lookup(), "onnx::MatMul_12", name="hidden"))
    assert paths(b.model()) == ["hidden", "W"]


def test_a_weight_that_is_read_twice_is_called_twice() -> None:
    b = builder()
    b.classify(b.bend(b.bend(b.lookup())))
    first = np.tanh(ROWS @ WEIGHTS["W1"] + WEIGHTS["b1"])
    close(values(b.model(), "W1:output#1")[0], first @ WEIGHTS["W1"] + WEIGHTS["b1"], 1e-12)


def test_single_numbers_and_shapes_are_no_weights() -> None:
    b = builder()
    scaled = b("Mul", b("Add", b.lookup(), b.number(1.0)), b.number(2.0))
    b.classify(b("Reshape", scaled, b("Shape", scaled)))
    assert paths(b.model()) == ["W"]


def test_constants_are_weights() -> None:
    b = builder()
    b.classify(b("MatMul", b.lookup(), b("Identity", b.constant(WEIGHTS["W1"]))))
    name = next(name for name in modules(b.model()) if name.startswith("c"))
    (weight,) = [weight for weight in weights_of(b.model()) if weight.name == name]
    np.testing.assert_array_equal(weight.get(), WEIGHTS["W1"])


@pytest.mark.parametrize("operator", ["LayerNormalization", "steps"])
def test_a_norm_is_a_module(operator: str) -> None:
    b = builder(**{"norm.weight": np.arange(1.0, 6.0), "norm.bias": np.arange(5.0)})
    hidden = b.bend(b.lookup())
    if operator == "steps":
        centred = b("Sub", hidden, b.mean(hidden, 2, 1))
        variance = b.mean(b("Mul", centred, centred), 2, 1)
        unit = b("Div", centred, b("Sqrt", b("Add", variance, b.number(1e-5))))
        normed = b("Add", b("Mul", unit, "norm.weight"), "norm.bias")
    else:
        normed = b("LayerNormalization", hidden, "norm.weight", "norm.bias", axis=-1, epsilon=1e-5)
    b.classify(normed)
    taken, made = values(b.model(), "norm:input#0", "norm:output#0")
    by_hand = np.tanh(ROWS @ WEIGHTS["W1"] + WEIGHTS["b1"])
    close(taken, by_hand, 1e-12)
    unit = (by_hand - by_hand.mean(-1, keepdims=True)) / np.sqrt(by_hand.var(-1, keepdims=True) + 1e-5)
    close(made, unit * np.arange(1.0, 6.0) + np.arange(5.0), 1e-12)


def test_a_norm_after_a_norm_ends_at_the_other() -> None:
    b = builder(**{"first.weight": np.arange(1.0, 6.0), "second.weight": np.arange(2.0, 7.0)})
    hidden = b.lookup()
    for name in ("first", "second"):
        root = b("Sqrt", b("Add", b.mean(b("Mul", hidden, hidden), 2, 1), b.number(1e-6)))
        hidden = b("Mul", b("Div", hidden, root), f"{name}.weight")
    b.classify(hidden)
    once = ROWS / np.sqrt((ROWS**2).mean(-1, keepdims=True) + 1e-6) * np.arange(1.0, 6.0)
    close(values(b.model(), "first:input#0")[0], ROWS, 1e-15)
    close(values(b.model(), "second:input#0")[0], once, 1e-12)


def test_a_vector_that_several_modules_share_is_a_weight_of_each() -> None:
    b = builder(**{"first.weight": np.arange(1.0, 6.0), "b": np.zeros(5), "c": np.zeros(2)})
    hidden = b.lookup()
    for scope, weight in (("/first", "W1"), ("/second", "W2")):
        b.weights[weight] = WEIGHTS["W1"] if weight == "W1" else 2 * WEIGHTS["W1"]
        hidden = b("Mul", hidden, "first.weight", scope=f"{scope}/norm")
        hidden = b("Tanh", b("Add", b("MatMul", hidden, weight, scope=scope), "b", scope=scope), scope=scope)
    for scope, weight in (("/third", "W3"), ("/fourth", "W4")):
        b.weights[weight] = WEIGHTS["W1"][:, :2] if weight == "W3" else WEIGHTS["W1"][:, 2:4]
        b.outputs.append(b("Add", b("MatMul", hidden, weight, scope=scope), "c", scope=scope))
    b("MatMul", hidden, b("Transpose", "E", perm=[1, 0]), name="logits")
    b.outputs.append("logits")
    model = b.model()
    assert modules(model) == {
        **{"E": "E", "W1": "first", "W2": "second", "b": "first", "second:b": "second"},
        **{"W3": "third", "W4": "fourth", "c": "third", "fourth:c": "fourth"},
        **{"first.weight": "first.norm", "second.norm.weight": "second.norm"},
    }
    (shared,) = [weight for weight in weights_of(model) if weight.name == "second.norm.weight"]
    np.testing.assert_array_equal(shared.get(), np.arange(1.0, 6.0))
    with pytest.raises(
        embgrad.errors.UnsupportedError, match=r"'second.norm.weight' is 'first.weight', which the graph"
    ):
        shared.put(np.zeros(5))


# Scopes


def test_scopes_are_modules_and_their_paths_have_dots() -> None:
    b = builder()
    hidden = b.bend(b.lookup(scope="/enc/emb"), "/enc/layer.0")
    b.classify(b("Add", hidden, b.number(1.0)))
    assert paths(b.model()) == ["enc", "enc.layer.0", "enc.layer.0.dense", "W"]
    assert modules(b.model()) == {
        "E": "enc.emb",
        "W1": "enc.layer.0.dense",
        "b1": "enc.layer.0.dense",
        "W": "W",
        "b": "W",
    }
    close(values(b.model(), "enc:output#0")[0], np.tanh(ROWS @ WEIGHTS["W1"] + WEIGHTS["b1"]), 1e-12)


def test_scopes_that_an_exporter_left_out_at_a_product_are_no_modules() -> None:
    b = builder()
    hidden = b("Exp", b("MatMul", b("Sin", b.lookup(scope="/emb"), scope="/layer"), "W1"), scope="/layer")
    b.classify(b("Tanh", hidden))
    assert paths(b.model()) == ["W1", "W"]
    assert [point.path for point in embgrad.points(b.model(), BATCH) if point.lookup] == ["emb"]


@pytest.mark.parametrize("scope", ["net_2/block_1_2", "net_2/block", "net/block_1"])
def test_the_number_of_a_call_is_no_number_of_a_layer(scope: str) -> None:
    b = builder()
    b.classify(b("Tanh", b.bend(b.lookup(), scope), scope="net_2/block" if scope == "net_2/block" else scope))
    root, block = scope.split("/")
    plain = f"{root.removesuffix('_2')}.{block.removesuffix('_2')}"
    assert paths(b.model())[:3] == [root.removesuffix("_2"), plain, f"{plain}.dense"]


def test_two_matrices_in_one_scope_are_two_modules() -> None:
    b = builder(**{"attn.q": WEIGHTS["W1"], "attn.k": WEIGHTS["W1"] * 2})
    rows = b.lookup()
    b.classify(
        b("Add", b("MatMul", rows, "attn.q", scope="/attn"), b("MatMul", rows, "attn.k", scope="/attn"), scope="/attn")
    )
    close(values(b.model(), "attn.k:output#0")[0], ROWS @ WEIGHTS["W1"] * 2, 1e-12)
    close(values(b.model(), "attn:output#0")[0], ROWS @ WEIGHTS["W1"] * 3, 1e-12)


def test_paths_that_pytorch_wrote_into_metadata() -> None:
    b = builder()
    doubled = b("Add", b.bend(b.lookup()), b.number(0.0))
    b.classify(b("Mul", doubled, b.number(2.0)))
    model = b.model()
    for node in model.graph.node:
        if node.op_type in ("Gather", "Tanh", "Mul"):
            entry = node.metadata_props.add()
            entry.key, entry.value = "pkg.torch.onnx.name_scopes", "['', 'bert', 'bert.layer.0', 'step']"
    assert paths(model)[:2] == ["bert", "bert.layer.0"]  # with the steps between these, whose paths are not written
    close(values(model, "bert.layer.0:output#0")[0], 2 * np.tanh(ROWS @ WEIGHTS["W1"] + WEIGHTS["b1"]), 1e-12)


def test_a_tensor_of_which_only_the_shape_is_used_outside_does_not_leave() -> None:
    b = builder()
    bent = b.bend(b.lookup(), "/m")
    more = b("Mul", bent, b.number(2.0), scope="/m")
    b.classify(b("Reshape", more, b("Shape", b("Neg", more, scope="/m"))))
    close(values(b.model(), "m:output#0")[0], 2 * np.tanh(ROWS @ WEIGHTS["W1"] + WEIGHTS["b1"]), 1e-12)


def test_a_matrix_that_is_transposed_in_its_scope_is_one_module() -> None:
    b = builder(W1=WEIGHTS["W1"].T)
    product = b("MatMul", b.lookup(), b("Transpose", "W1", scope="/m", perm=[1, 0]), scope="/m")
    b.classify(b("Tanh", product, scope="/m"))
    assert paths(b.model()) == ["m", "W"]
    close(values(b.model(), "m:output#0")[0], np.tanh(ROWS @ WEIGHTS["W1"]), 1e-12)


def test_points_are_tensors_of_real_numbers_that_depend_on_the_batch() -> None:
    b = builder()
    scaled = b("Mul", b.number(2.0), b("Sin", b.lookup()), scope="/m")
    large = b("Greater", scaled, b.number(0.0), scope="/m")
    b.classify(b("Where", large, scaled, b("Neg", scaled)))
    taken, made = values(b.model(), "m:input#0", "m:output#0")
    close(taken, np.sin(ROWS), 1e-12)
    close(made, 2 * np.sin(ROWS), 1e-12)


def test_a_mask_is_not_what_a_module_takes() -> None:
    b = builder()
    b.inputs.append("attention_mask")
    mask = b("Unsqueeze", b("Cast", "attention_mask", to=b.type), b.constant(np.array([2])))
    b.classify(b("Tanh", b("Mul", mask, b("Sin", b.lookup()), scope="/m"), scope="/m"))
    close(values(b.model(), "m:input#0")[0], np.sin(ROWS), 1e-12)


def test_a_module_that_returns_several_tensors() -> None:
    b = builder()
    rows = b.lookup()
    hidden = b("Tanh", rows, scope="/m")
    more = b("MatMul", hidden, "W1", scope="/m")
    first, second = b("Exp", rows, scope="/rotary"), b("Sin", rows, scope="/rotary")
    b.classify(b("Add", b("Add", hidden, more), b("Add", second, first)))
    last, first = values(b.model(), "m:output#0", "rotary:output#0")
    close(last, np.tanh(ROWS) @ WEIGHTS["W1"], 1e-12)  # it is computed from the other
    close(first, np.exp(ROWS), 1e-12)
    b = builder()
    b("Tanh", b.lookup(), scope="/whole", name="sequence")
    b("Neg", "sequence", scope="/whole", name="negative")
    b.outputs += ["sequence", "negative"]
    close(values(b.model(), "whole:output#0")[0], np.tanh(ROWS), 1e-12)  # what the graph returns first


def test_a_module_that_is_called_twice() -> None:
    b = builder()
    hidden = b.lookup()
    for _ in range(2):
        hidden = b("Neg", b("Tanh", b.bend(b("Sin", hidden, scope="/m/act"), "/m"), scope="/m"), scope="/m")
    b.classify(b("Abs", hidden))
    once = -np.tanh(np.tanh(np.sin(ROWS) @ WEIGHTS["W1"] + WEIGHTS["b1"]))
    twice = -np.tanh(np.tanh(np.sin(once) @ WEIGHTS["W1"] + WEIGHTS["b1"]))
    for key, expected in (
        ("m:output#0", once),
        ("m:input#1", once),
        ("m.dense:input#1", np.sin(once)),
        ("m.act:output#1", np.sin(once)),
        ("m:output#1", twice),
    ):
        close(values(b.model(), key)[0], expected, 1e-12)


@pytest.mark.parametrize("producer", ["pytorch", "another"])
def test_pytorch_adds_a_number_to_a_module_that_is_called_again(producer: str) -> None:
    b = builder(W2=WEIGHTS["W1"] * 2)
    hidden = b.bend(b.bend(b.lookup(), "/m"), "/m_1")
    b.classify(b("MatMul", hidden, "W2", scope="/m_2"))
    model = b.model()
    model.producer_name = producer
    expected = ["m", "m.dense"] * 2 if producer == "pytorch" else ["m", "m.dense", "m_1", "m_1.dense"]
    assert paths(model) == [*expected, "m_2", "W"]  # which reads another weight


# Changes


@pytest.mark.parametrize(
    ("first", "second"), [("emb.table#0", "emb.table:output#0"), ("emb.table:output#0", "emb:output#0")]
)
def test_changes_of_one_tensor_go_from_the_inside_to_the_outside(first: str, second: str) -> None:
    b = builder()
    b.classify(b.lookup(scope="/emb/table"))
    override = {second: lambda value: value + 1, first: lambda value: 2 * value}
    request = Request((first, second, "W:input#0"), override=override, pullback=False)
    run = bind(b.model()).run(BATCH, request)
    close(run.points[first].activation, 2 * ROWS, 1e-12)
    close(run.points[second].activation, 2 * ROWS + 1, 1e-12)
    close(run.points["W:input#0"].activation, 2 * ROWS + 1, 1e-12)


def test_changes_of_inputs_go_from_the_outside_to_the_inside() -> None:
    b = builder()
    b.classify(b("Add", b.bend(b("Sin", b.lookup()), "/m"), b.number(0.0), scope="/n"))
    override = {"m.dense:input#0": lambda value: value + 1, "m:input#0": lambda value: 2 * value}
    request = Request((*override, "m:output#0"), override=override, pullback=False)
    run = bind(b.model()).run(BATCH, request)
    close(run.points["m:input#0"].activation, 2 * np.sin(ROWS), 1e-12)
    close(run.points["m.dense:input#0"].activation, 2 * np.sin(ROWS) + 1, 1e-12)
    expected = np.tanh((2 * np.sin(ROWS) + 1) @ WEIGHTS["W1"] + WEIGHTS["b1"])
    close(run.points["m:output#0"].activation, expected, 1e-12)


def test_what_the_graph_takes_is_changed() -> None:
    b = builder()
    b.classify(b("Add", b.lookup(), b("MatMul", "features", "W1")))
    model = b.model()
    model.graph.input.append(helper.make_tensor_value_info("features", TensorProto.DOUBLE, ["a", "b", "c"]))
    features = np.random.default_rng(0).normal(size=(3, 4, 5))
    batch = BATCH.replace(extras={"features": features})
    request = Request(("W1:output#0",), override={"W1:input#0": lambda value: value + 1}, pullback=False)
    made = bind(model).run(batch, request).points["W1:output#0"].activation
    close(made, (features + 1) @ WEIGHTS["W1"], 1e-12)


def test_an_input_that_is_changed_is_seen_by_its_module_alone() -> None:
    b = builder(Q=WEIGHTS["W1"], K=WEIGHTS["W1"] * 2)
    hidden = b("Tanh", b.lookup(scope="/emb"), scope="/emb")
    b.classify(b("Add", b("Add", b("MatMul", hidden, "Q"), b("MatMul", hidden, "K")), hidden))
    rows = np.tanh(ROWS)
    for changes, expected in (
        ({"Q:input#0": 3.0}, 3 * rows @ WEIGHTS["W1"] + 2 * rows @ WEIGHTS["W1"] + rows),
        ({"emb:output#0": 3.0}, 3 * (3 * rows @ WEIGHTS["W1"] + rows)),
        ({"emb:output#0": 2.0, "K:input#0": 5.0}, 2 * (rows @ WEIGHTS["W1"] + 10 * rows @ WEIGHTS["W1"] + rows)),
        ({"emb#0": 0.5, "Q:output#0": -1.0}, np.tanh(0.5 * ROWS) @ WEIGHTS["W1"] + np.tanh(0.5 * ROWS)),
    ):
        override = {key: lambda value, factor=factor: factor * value for key, factor in changes.items()}
        reads = ("W:input#0", *changes)
        run = bind(b.model()).run(BATCH, Request(reads, override=override, pullback=False))
        close(run.points["W:input#0"].activation, expected, 1e-12)


def test_a_point_is_read_beside_a_change_of_its_tensor() -> None:
    b = builder()
    b.classify(b.bend(b("Tanh", b.lookup(scope="/emb"), scope="/emb")))
    request = Request(
        ("emb:output#0", "W1:input#0"), override={"emb:output#0": lambda value: 2 * value}, pullback=False
    )
    run = bind(b.model()).run(BATCH, request)
    for key in request.points:
        close(run.points[key].activation, 2 * np.tanh(ROWS), 1e-12)
    request = Request(("emb:output#0", "W1:input#0"), override={"W1:input#0": lambda value: 2 * value}, pullback=False)
    run = bind(b.model()).run(BATCH, request)
    close(run.points["emb:output#0"].activation, np.tanh(ROWS), 1e-12)
    close(run.points["W1:input#0"].activation, 2 * np.tanh(ROWS), 1e-12)


def test_a_graph_inside_takes_a_tensor_that_is_changed() -> None:
    b = builder()
    hidden = b.bend(b.lookup(), "/m")
    double = helper.make_graph([helper.make_node("Add", [hidden, hidden], ["twice"])], "then", [], [value("twice")])
    same = helper.make_graph([helper.make_node("Identity", [hidden], ["once"])], "else", [], [value("once")])
    made = b("If", b.constant(np.bool_(True)), then_branch=double, else_branch=same)
    b.classify(b("Add", made, hidden))
    request = Request(("W:input#0",), override={"m:output#0": lambda value: value + 1}, pullback=False)
    bent = np.tanh(ROWS @ WEIGHTS["W1"] + WEIGHTS["b1"])
    close(bind(b.model()).run(BATCH, request).points["W:input#0"].activation, 3 * (bent + 1), 1e-12)


def test_what_the_graph_returns_is_changed() -> None:
    b = builder()
    b("Add", b("MatMul", b.mean(b.lookup()), "W", scope="/head"), "b", scope="/head", name="logits")
    b.outputs += ["logits", "E"]
    override = {"head:output#0": lambda value: 0 * value + 7}
    values = embgrad.evaluate(b.model(), BATCH, embgrad.Sum(), override=override)
    np.testing.assert_array_equal(values, [21.0] * 3)


# Graphs inside graphs, functions, tables


def test_a_graph_inside_takes_tensors_from_outside() -> None:
    b = builder()
    hidden = b.bend(b.lookup())
    double = helper.make_graph([helper.make_node("Add", [hidden, hidden], ["twice"])], "then", [], [value("twice")])
    same = helper.make_graph([helper.make_node("Identity", [hidden], ["once"])], "else", [], [value("once")])
    b.classify(b("If", b.constant(np.bool_(True)), then_branch=double, else_branch=same))
    expected = 2 * np.tanh(ROWS @ WEIGHTS["W1"] + WEIGHTS["b1"])
    close(values(b.model(), "W:input#0")[0], expected, 1e-12)


def value(name: str) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.DOUBLE, ["a", "b", "c"])


def test_functions_of_a_model_are_written_out() -> None:
    b = builder()
    b.classify(b("Bend", b.lookup(), "W1", domain="own"))
    model = b.model()
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Tanh", ["y"], ["z"])]
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.functions.append(helper.make_function("own", "Bend", ["x", "w"], ["z"], nodes, [helper.make_opsetid("", 18)]))
    before = model.SerializeToString()
    close(values(model, "W1:output#0")[0], ROWS @ WEIGHTS["W1"], 1e-12)
    assert model.SerializeToString() == before


def test_a_table_of_whole_numbers_and_one_along_another_axis_are_no_word() -> None:
    model = _with_table(numpy_helper.from_array(np.ones((40, 5), np.int8), "E"))
    with pytest.raises(embgrad.errors.PointNotReachedError, match=r"rows of 'E', of shape .* not floating point"):
        bind(model).run(BATCH, Request(("word",), pullback=False))
    model = _with_table(numpy_helper.from_array(WEIGHTS["E"].T.copy(), "E"), axis=1)
    with pytest.raises(embgrad.errors.PointNotReachedError, match="entries along axis 1 of 'E'"):
        bind(model).run(BATCH, Request(("word",), pullback=False))


def test_a_fused_embedding_block_is_no_lookup() -> None:
    b = Builder({**WEIGHTS, "gamma": np.ones(5), "beta": np.zeros(5)}, "float32")
    inputs = ("input_ids", "", "E", "E2", "", "gamma", "beta")
    node = helper.make_node("EmbedLayerNormalization", inputs, ["rows", "mask"], domain="com.microsoft", epsilon=1e-5)
    b.nodes.append(node)
    b.classify(b.mean("rows"))
    model = b.model()
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT32
    summed = ROWS + WEIGHTS["E2"][:4]
    by_hand = (summed - summed.mean(-1, keepdims=True)) / np.sqrt(summed.var(-1, keepdims=True) + 1e-5)
    close(values(model, "E:output#0")[0], by_hand, 1e-5)
    message = "used otherwise: they are used inside EmbedLayerNormalization with 'E'"
    with pytest.raises(embgrad.errors.PointNotReachedError, match=message):
        bind(model).run(BATCH, Request(("word",), pullback=False))


def _with_table(table: Any, axis: int = 0) -> Any:
    b = builder()
    rows = b("Cast", b("Gather", "E", "input_ids", axis=axis), to=TensorProto.DOUBLE)
    b.classify(b("Reshape", rows, b.constant(np.array([3, 4, 5]))))
    model = b.model()
    (tensor,) = [tensor for tensor in model.graph.initializer if tensor.name == "E"]
    tensor.CopyFrom(table)
    return model


def test_a_table_that_is_the_head_as_well_is_where_the_ids_are_looked_up() -> None:
    b = builder()
    hidden = b.bend(b("Mul", b.lookup(scope="/emb"), b.number(2.0), scope="/emb"), "/enc")
    b("MatMul", hidden, b("Transpose", "E", perm=[1, 0]), scope="/head", name="logits")
    b.outputs.append("logits")
    (word,) = [point for point in embgrad.points(b.model(), BATCH) if point.lookup is not None]
    assert word.path == "emb"
    assert modules(b.model())["E"] == "emb"
