"""Which of a model's parameters get which part of the batch."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.backend.cotangents import compute_dtype
from embgrad.inputs.batch import CONVENTIONS
from embgrad.inputs.conventions import as_batch
from embgrad.toolkit.arguments import integer_arguments, named_arguments
from embgrad.toolkit.signature import CallPlan, _further, as_parts, parameters_of, plan_call, plan_mapping
from tests.unit.refusals import refused

IDS = np.array([[1, 2, 3], [4, 5, 6]])
MASK = np.array([[1, 1, 1], [1, 1, 0]])
TYPES = np.array([[0, 0, 1], [0, 1, 0]])
EXTRA = np.array([[7], [8]])
LENGTHS = np.array([3, 2])
ONES, ZEROS = np.ones_like(IDS), np.zeros_like(IDS)
BARE = embgrad.TokenBatch(IDS)
FULL = embgrad.TokenBatch(IDS, MASK, TYPES)
TFHUB, KERAS_HUB = (list(CONVENTIONS[name]) for name in ("tfhub", "keras_hub"))


def planned(function: Callable[..., Any], batch: embgrad.TokenBatch, **options: Any) -> CallPlan:
    return plan_call(parameters_of(function), batch, **options)


def expect_plan(plan: CallPlan, args: list[Any], kwargs: dict[str, Any], unused: tuple[str, ...] = ()) -> None:
    assert len(plan.args) == len(args)
    for value, expected in zip(plan.args, args, strict=True):
        np.testing.assert_array_equal(value, expected)
    assert plan.kwargs.keys() == kwargs.keys()
    for name, expected in kwargs.items():
        np.testing.assert_array_equal(plan.kwargs[name], expected)
    assert plan.unused == unused


#: Forward methods of well-known models, by their parameters.
models = SimpleNamespace(
    huggingface=lambda input_ids=None, attention_mask=None, token_type_ids=None, position_ids=None: None,
    gpt2=lambda input_ids=None, past_key_values=None, attention_mask=None, token_type_ids=None: None,
    gluonnlp=lambda inputs, token_types, valid_length=None, masked_positions=None: None,
    gluon_classifier=lambda inputs, valid_length: None,
    both=lambda input_ids, attention_mask=None, lengths=None: None,
    single=lambda sentence: None,
    shuffled=lambda mask, x: None,
    keyword_only=lambda *, input_ids, attention_mask=None: None,
    open_keywords=lambda input_ids, **kwargs: None,
    anything=lambda *args, **kwargs: None,
    any_positional=lambda *args: None,
    by_place=lambda input_ids, attention_mask=None, token_type_ids=None, /: None,
    needs_mask=lambda tokens, mask: None,
    siamese=lambda input_ids, hypothesis: None,
    typed_first=lambda token_types, ids: None,
)


@pytest.mark.parametrize(
    ("function", "batch", "args", "kwargs", "unused"),
    [
        (models.huggingface, BARE, [IDS], {}, ()),
        (models.huggingface, FULL, [IDS, MASK, TYPES], {}, ()),
        (models.huggingface, FULL.replace(mask=None), [IDS], {"token_type_ids": TYPES}, ()),
        (models.gpt2, FULL, [IDS], {"attention_mask": MASK, "token_type_ids": TYPES}, ()),
        (models.gpt2, BARE, [IDS], {}, ()),
        (models.gluonnlp, BARE, [IDS, ZEROS], {}, ()),
        (models.gluonnlp, FULL, [IDS, TYPES, LENGTHS], {}, ()),
        (models.gluon_classifier, FULL, [IDS, LENGTHS], {}, ("types",)),
        (models.both, FULL.replace(types=None), [IDS, MASK], {}, ()),
        (models.both, BARE, [IDS], {}, ()),
        (models.single, FULL, [IDS], {}, ("mask", "types")),
        (models.shuffled, FULL, [MASK, IDS], {}, ("types",)),
        (models.shuffled, BARE, [ONES, IDS], {}, ()),
        (models.keyword_only, FULL, [], {"input_ids": IDS, "attention_mask": MASK}, ("types",)),
        (models.open_keywords, BARE, [IDS], {}, ()),
        (models.anything, FULL, [], {"input_ids": IDS, "attention_mask": MASK, "token_type_ids": TYPES}, ()),
        (models.anything, BARE, [], {"input_ids": IDS}, ()),
        (models.any_positional, FULL, [IDS], {}, ("mask", "types")),
        (models.by_place, BARE, [IDS], {}, ()),
        (models.by_place, FULL, [IDS, MASK, TYPES], {}, ()),
        (models.needs_mask, BARE, [IDS, ONES], {}, ()),
        (models.typed_first, BARE, [ZEROS, IDS], {}, ()),
    ],
)
def test_plans(function: Any, batch: Any, args: list[Any], kwargs: dict[str, Any], unused: tuple[str, ...]) -> None:
    expect_plan(planned(function, batch), args, kwargs, unused)


class Skipping:
    def forward(self, ids: Any, training: Any = None, mask: Any = None, *, types: Any = None) -> None:
        pass


def test_what_follows_a_skipped_parameter_is_passed_by_name() -> None:
    found = parameters_of(Skipping().forward, ["training"])
    assert [(p.name, p.kind.name) for p in found] == [
        ("ids", "POSITIONAL_OR_KEYWORD"),
        ("mask", "KEYWORD_ONLY"),
        ("types", "KEYWORD_ONLY"),
    ]
    whole = [(p.name, p.kind.name) for p in parameters_of(Skipping().forward)]
    assert whole[:3] == [(name, "POSITIONAL_OR_KEYWORD") for name in ("ids", "training", "mask")]
    assert [p.name for p in parameters_of(Skipping().forward, ["types"])] == ["ids", "training", "mask"]
    assert {p.kind.name for p in parameters_of(Skipping().forward, ["types"])} == {"POSITIONAL_OR_KEYWORD"}


@pytest.mark.parametrize(("convention", "bare"), [("ids", True), ("huggingface", False)])
def test_a_signature_without_names_gets_bare_ids_only_where_the_user_gave_them_so(convention: str, bare: bool) -> None:
    batch = embgrad.TokenBatch(IDS, convention=convention)
    both = plan_call(parameters_of(lambda *args, **kwargs: None), batch)
    assert (len(both.args), [*both.kwargs]) == ((1, []) if bare else (0, ["input_ids"]))
    named = plan_call(parameters_of(lambda **kwargs: None), batch)
    assert (len(named.args), [*named.kwargs]) == (0, ["input_ids"])
    masked = embgrad.TokenBatch(IDS, np.ones_like(IDS), convention=convention)
    placed = plan_call(parameters_of(lambda *args: None), masked)
    assert (len(placed.args), placed.kwargs, placed.unused) == (1, {}, ("mask",))


def test_a_mask_of_the_decoder_that_was_not_given_is_ones() -> None:
    batch = embgrad.TokenBatch(IDS, extras={"decoder_input_ids": IDS[:, :2]})
    found = _further("decoder_attention_mask", batch)
    assert found is not None
    assert found[0] == "decoder_input_ids"
    np.testing.assert_array_equal(found[1], np.ones((2, 2)))
    assert _further("attention_mask", batch) is None
    assert _further("decoder_attention_mask", embgrad.TokenBatch(IDS)) is None


def test_packed_ids_and_their_offsets_are_an_argument_each() -> None:
    packed = as_batch({"input": np.array([1, 2, 3, 4, 5]), "offsets": np.array([0, 3])})

    def bag(input: Any, offsets: Any = None) -> None: ...

    expect_plan(planned(bag, packed), [[1, 2, 3, 4, 5], [0, 3]], {})

    def weighted(input: Any, offsets: Any, scale: Any) -> None: ...

    scaled = packed.replace(extras={"scale": EXTRA, "labels": LENGTHS})
    expect_plan(planned(weighted, scaled), [[1, 2, 3, 4, 5], [0, 3], EXTRA], {}, ("labels",))
    expect_plan(planned(bag, scaled), [[1, 2, 3, 4, 5], [0, 3]], {}, ("scale", "labels"))
    with refused(embgrad.errors.BatchError, "the model takes no input of that name: expected ids of shape"):
        planned(lambda input: None, packed)


def test_a_plan_can_be_called() -> None:
    for name in ["huggingface", "gpt2", "gluonnlp", "both", "shuffled", "keyword_only", "anything", "typed_first"]:
        function = getattr(models, name)
        plan = planned(function, FULL)
        inspect.signature(function).bind(*plan.args, **plan.kwargs)


def test_omitted_positional_arguments_keep_their_default() -> None:
    plan = planned(models.by_place, FULL.replace(mask=None))
    assert plan.args[1] is None
    np.testing.assert_array_equal(plan.args[2], TYPES)
    assert plan.kwargs == {}


def test_extras_go_under_their_own_names() -> None:
    batch = FULL.replace(extras={"position_ids": EXTRA, "labels": EXTRA})
    expect_plan(planned(models.huggingface, batch), [IDS, MASK, TYPES, EXTRA], {}, ("labels",))
    expect_plan(planned(models.open_keywords, BARE.replace(extras={"labels": EXTRA})), [IDS], {"labels": EXTRA})
    expect_plan(planned(models.siamese, BARE.replace(extras={"hypothesis": EXTRA})), [IDS, EXTRA], {})
    expect_plan(
        planned(models.anything, BARE.replace(extras={"labels": EXTRA})), [], {"input_ids": IDS, "labels": EXTRA}
    )
    expect_plan(planned(models.any_positional, BARE.replace(extras={"labels": EXTRA})), [IDS], {}, ("labels",))


def test_bare_ids_go_first_where_no_parameter_has_a_name() -> None:
    bare = embgrad.TokenBatch(IDS, convention="ids")
    expect_plan(planned(models.anything, bare), [IDS], {}, ())  # a decorator may hide any names


def test_a_mask_that_was_given_as_bool_reaches_the_model_as_bool() -> None:
    """A model may index with the mask or invert it, and ~1 is -2."""
    given = {"input_ids": IDS, "attention_mask": np.asarray(MASK) == 1}
    batch = as_batch(given)
    assert batch.mask.dtype == np.int64
    for variant in (batch, batch[:2], batch.replace(tokens=None), pickle.loads(pickle.dumps(batch))):
        assert variant.inputs()["attention_mask"].dtype == bool
        assert planned(models.huggingface, variant).args[1].dtype == bool
        assert planned(models.anything, variant).kwargs["attention_mask"].dtype == bool
        assert plan_mapping(["input_ids", "attention_mask"], variant)[0]["attention_mask"].dtype == bool
    whole = as_batch({**given, "attention_mask": MASK})
    assert whole != batch
    assert whole.inputs()["attention_mask"].dtype == np.int64
    assert embgrad.TokenBatch(IDS, np.asarray(MASK) == 1).inputs()["attention_mask"].dtype == np.int64


def test_a_mask_goes_to_one_parameter_alone() -> None:
    def reversed_twin(input_ids, input_mask=None, attention_mask=None):
        """As XLNet, whose input_mask is 1 at padding."""

    expect_plan(planned(reversed_twin, FULL.replace(types=None)), [IDS], {"attention_mask": MASK}, ())


def test_explicit_lengths_replace_the_mask() -> None:
    def recurrent(text, lengths): ...

    batch = FULL.replace(types=None, extras={"lengths": [2, 3]})
    expect_plan(planned(recurrent, batch), [IDS, [2, 3]], {})


@pytest.mark.parametrize("name", ["lengths", "valid_length", "src_lengths", "token_lengths", "seq_lens"])
def test_lengths_are_counted_from_the_mask_or_refused(name: str) -> None:
    def recurrent(text, lengths): ...

    function = SimpleNamespace(forward=recurrent)
    parameters = [p.replace(name=name) if p.name == "lengths" else p for p in parameters_of(function.forward)]
    expect_plan(plan_call(parameters, FULL.replace(types=None)), [IDS, LENGTHS], {})
    text = (
        f"the model needs '{name}', which has no default, and the number of real tokens of each example is not known: give the "
        f"batch as a dict with the key '{name}', or the batch's mask, from which the lengths are counted, or pass call="
    )
    for call in (lambda: plan_call(parameters, BARE), lambda: plan_mapping(["text", name], BARE)):
        with refused(embgrad.errors.BatchError, text):
            call()
    whole = BARE.replace(convention="gluonnlp")  # whose batches always have lengths
    expect_plan(plan_call(parameters, whole), [IDS, [3, 3]], {})


def test_a_length_that_may_be_of_all_examples_is_not_counted() -> None:
    def recurrent(text, seq_len): ...

    with refused(embgrad.errors.BatchError, "the model needs 'seq_len'", "with the key 'seq_len', or pass call=lambda"):
        planned(recurrent, FULL)
    expect_plan(planned(recurrent, BARE.replace(extras={"seq_len": 3})), [IDS, 3], {})


def test_optional_lengths_that_are_not_known_are_not_passed() -> None:
    def recurrent(text, lengths=None, seq_len=128): ...

    expect_plan(planned(recurrent, BARE), [IDS], {})
    expect_plan(planned(recurrent, FULL.replace(types=None)), [IDS, LENGTHS], {})


def test_left_padding_reaches_a_model_that_takes_lengths_and_a_mask() -> None:
    left = FULL.replace(types=None, mask=np.asarray(FULL.mask)[:, ::-1])
    expect_plan(planned(models.both, left), [IDS, np.asarray(MASK)[:, ::-1]], {}, ())


def test_skipped_parameters_are_not_filled() -> None:
    class Block:
        def hybrid_forward(self, F: Any, inputs: Any, training: bool = False) -> None: ...

    parameters = parameters_of(Block().hybrid_forward, skip=("F", "training"))
    assert [parameter.name for parameter in parameters] == ["inputs"]


def test_an_argument_that_the_batch_has_nothing_for() -> None:
    with refused(
        embgrad.errors.BatchError,
        "the model needs 'hypothesis'",
        "as a dict with that key",
        "call=lambda model, inputs: ...",
    ):
        planned(models.siamese, BARE)


def test_left_padding_has_no_valid_length() -> None:
    with pytest.raises(embgrad.errors.BatchError, match="not padded on the right only"):
        planned(models.gluonnlp, FULL.replace(mask=MASK[:, ::-1]))


def test_parts() -> None:
    model = object()
    assert as_parts(model) == (model,)
    assert as_parts([model, 1]) == as_parts((model, 1)) == (model, 1)


@pytest.mark.parametrize(
    ("names", "batch", "expected", "unused"),
    [
        (["input_ids"], FULL, {"input_ids": IDS}, ("mask", "types")),
        (["input_ids", "attention_mask"], FULL, {"input_ids": IDS, "attention_mask": MASK}, ("types",)),
        (TFHUB, BARE, dict(zip(TFHUB, (IDS, ONES, ZEROS), strict=True)), ()),
        (KERAS_HUB, FULL, dict(zip(KERAS_HUB, (IDS, MASK, TYPES), strict=True)), ()),
        (["data0", "valid_length"], FULL.replace(types=None), {"data0": IDS, "valid_length": LENGTHS}, ()),
        (["input_1"], BARE, {"input_1": IDS}, ()),
        (["input_1", "mask"], BARE, {"input_1": IDS, "mask": ONES}, ()),
    ],
)
def test_mappings(names: list[str], batch: Any, expected: dict[str, Any], unused: tuple[str, ...]) -> None:
    filled, left = plan_mapping(names, batch)
    assert filled.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(filled[name], value)
    assert left == unused


def test_extras_fill_inputs_of_their_names() -> None:
    batch = BARE.replace(extras={"features": EXTRA, "labels": EXTRA})
    filled, unused = plan_mapping(["input_1", "features"], batch)
    np.testing.assert_array_equal(filled["features"], EXTRA)
    np.testing.assert_array_equal(filled["input_1"], IDS)
    assert unused == ("labels",)


@pytest.mark.parametrize(
    ("names", "fragments"),
    [
        (["left", "right"], ["the model's inputs are 'left', 'right'", "none has a name that means token ids"]),
        (["mask"], ["the model's inputs are 'mask'"]),
        (["input_ids", "features"], ["the model needs 'features'", "call="]),
    ],
)
def test_mappings_that_cannot_be_filled(names: list[str], fragments: list[str]) -> None:
    with refused(embgrad.errors.BatchError, *fragments):
        plan_mapping(names, BARE)


def takes_dict(features: dict[str, Any]) -> None: ...


def takes_mapping(inputs: Mapping[str, Any], scale: float = 1.0, **kwargs: Any) -> None: ...


def takes_real_dict(x): ...


takes_real_dict.__annotations__ = {"x": dict[str, int]}


def takes_named(batch): ...


def takes_ids(input: np.ndarray) -> None: ...


def takes_more(features: dict[str, Any], mask: Any) -> None: ...


@pytest.mark.parametrize("function", [takes_dict, takes_mapping, takes_real_dict, takes_named])
def test_a_model_that_takes_one_dict(function: Callable[..., Any]) -> None:
    given = {"input_ids": IDS, "attention_mask": MASK, "position_ids": ZEROS}
    plan = planned(function, as_batch(given))
    assert len(plan.args) == 1
    assert (plan.kwargs, plan.unused) == ({}, ())
    assert list(plan.args[0]) == list(given)
    for name, value in given.items():
        np.testing.assert_array_equal(plan.args[0][name], value)
    hub = planned(function, as_batch({"token_ids": IDS}))
    assert list(hub.args[0]) == ["token_ids"]


def test_ids_alone_go_in_a_dict_where_the_model_says_so() -> None:
    assert list(planned(takes_dict, as_batch(IDS)).args[0]) == ["input_ids"]
    triple = planned(takes_dict, as_batch((IDS, TYPES, LENGTHS)))
    assert list(triple.args[0]) == ["input_ids", "attention_mask", "token_type_ids"]


def test_ids_alone_go_to_a_parameter_that_does_not_say_so() -> None:
    for function in (takes_named, takes_ids):
        expect_plan(planned(function, as_batch(IDS)), [IDS], {})
    expect_plan(planned(takes_ids, as_batch({"input_ids": IDS})), [IDS], {})
    expect_plan(planned(takes_more, FULL), [IDS, MASK], {}, ("types",))


def _parameters(function: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def test_arguments_go_by_the_parameters_names() -> None:
    parameters = _parameters(lambda ids, mask=None, **more: None)
    assert named_arguments(parameters, (1,), {"mask": 2, "other": 3}) == {"ids": 1, "mask": 2, "more": {"other": 3}}
    assert named_arguments(parameters, (1, 2, 3), {}) is None
    assert integer_arguments({"ids": [1, 2]}, lambda name, value: value) == {"ids.0": 1, "ids.1": 2}
    assert not integer_arguments({"ids": [1]}, lambda name, value: None if name == "ids" else value, sequences=False)


def test_the_compute_dtype_is_the_coarsest_that_shows() -> None:
    assert compute_dtype(["float32", "bfloat16"], iter(["float64"])) == "bfloat16"
    assert compute_dtype([], iter(["float64", "float16"])) == "float64"
    assert compute_dtype([], []) == "float32"
