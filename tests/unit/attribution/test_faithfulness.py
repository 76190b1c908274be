"""Faithfulness on models in NumPy, against closed forms and against evaluations of the shortened texts."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.attribution.faithfulness import kendall
from embgrad.errors import BatchError, UnsupportedError
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.attribution.models import CLASSES, DIM, VOCAB, Tokenizer, curved, linear

LOGIT = embgrad.Logit(0)
#: Examples of 6 and of 3 tokens that can be removed, between special ones, and padding.
TOKENS = [
    ["[CLS]", "a", "b", "c", "d", "e", "f", "[SEP]"],
    ["[CLS]", "a", "b", "c", "[SEP]", "[PAD]", "[PAD]", "[PAD]"],
]
IDS = np.array([[2, 7, 6, 8, 1, 4, 9, 5], [2, 1, 9, 3, 5, 0, 0, 0]])
MASK = np.array([[1] * 8, [1] * 5 + [0] * 3])
BATCH = embgrad.TokenBatch(IDS, MASK, tokens=TOKENS)
REMOVABLE = np.array([[0, 1, 1, 1, 1, 1, 1, 0], [0, 1, 1, 1, 0, 0, 0, 0]], bool)
SHARES = np.arange(1, 11) / 10


def scores(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=IDS.shape)


def measured(attribution: Any, model: Any = None, objective: Any = LOGIT, batch: Any = BATCH, **options: Any) -> Any:
    return embgrad.metrics.faithfulness(model or curved(), batch, objective, attribution, **options)


def without(removed: np.ndarray, remove: Any, example: int, model: Any = None) -> float:
    """Return L of an example without some of its positions, from a batch of its own."""
    real = MASK[example].astype(bool)
    ids = IDS[example, real & ~removed] if remove == "delete" else np.where(removed, remove, IDS[example])[real]
    return float(embgrad.evaluate(model or curved(), [ids], LOGIT)[0])


def top(values: np.ndarray, example: int, count: int) -> np.ndarray:
    """Return the positions with the highest scores, bool, (position,)."""
    ranked = sorted(np.flatnonzero(REMOVABLE[example]), key=lambda position: (-values[example, position], position))
    return np.isin(np.arange(IDS.shape[1]), ranked[:count])


@pytest.mark.parametrize("remove", ["delete", "zero"])
def test_on_a_linear_model_each_metric_has_a_closed_form(remove: str) -> None:
    model = linear()
    attribution = embgrad.attribute(model, BATCH, LOGIT, "input_x_gradient")
    found = measured(attribution, model, remove=remove)
    for example, own in enumerate(REMOVABLE):
        terms = np.sort(attribution.scores[example, own])[::-1]
        sums = np.concatenate([[0], terms.cumsum()])
        counts = np.minimum(np.floor(SHARES * len(terms) + 1e-9).astype(int), (terms > 0).sum())
        np.testing.assert_array_equal(found.counts[0, example], counts)
        np.testing.assert_allclose(found.comprehensiveness[0, example], sums[counts], atol=1e-12)
        np.testing.assert_allclose(found.sufficiency[0, example], sums[-1] - sums[counts], atol=1e-12)
        np.testing.assert_allclose(found.aopc_comprehensiveness[0, example], sums[counts].mean(), atol=1e-12)
        np.testing.assert_allclose(found.aopc_sufficiency[0, example], (sums[-1] - sums[counts]).mean(), atol=1e-12)
        whole = found.objective[example]
        np.testing.assert_allclose(found.deletion[0, example, : len(sums)], whole - sums, atol=1e-12)
        np.testing.assert_allclose(found.insertion[0, example, : len(sums)], whole - sums[-1] + sums, atol=1e-12)
        assert np.isnan(found.deletion[0, example, len(sums) :]).all()
        middle = (sums[1:] + sums[:-1]) / 2
        assert found.deletion_area[0, example] == pytest.approx(whole - middle.mean())
        assert found.insertion_area[0, example] == pytest.approx(whole - sums[-1] + middle.mean())
    np.testing.assert_allclose(found.leave_one_out, np.where(REMOVABLE, attribution.scores, 0), atol=1e-12)
    np.testing.assert_array_equal(found.loo_correlation, 1)
    np.testing.assert_allclose(found.objective, embgrad.evaluate(model, BATCH, LOGIT), rtol=1e-12)
    np.testing.assert_array_equal(found.tokens, [6, 3])


@pytest.mark.parametrize("remove", ["delete", 4])
@pytest.mark.parametrize("size", [None, 1, 5])
def test_each_text_is_evaluated_as_if_the_user_had_shortened_it(remove: Any, size: int | None) -> None:
    attributions = {"a": scores(0), "b": scores(1)}
    found = measured(attributions, remove=remove, batch_size=size, shares=[0.2, 0.5, 1.0], positive=False)
    for method, values in enumerate(attributions.values()):
        for example, own in enumerate(REMOVABLE):
            whole = without(np.zeros(8, bool), remove, example)
            for count in range(own.sum() + 1):
                first = top(values, example, count)
                deleted, inserted = without(first, remove, example), without(own & ~first, remove, example)
                assert found.deletion[method, example, count] == pytest.approx(deleted, abs=1e-12)
                assert found.insertion[method, example, count] == pytest.approx(inserted, abs=1e-12)
                for share in np.flatnonzero(found.counts[method, example] == count):
                    difference = (
                        found.comprehensiveness[method, example, share],
                        found.sufficiency[method, example, share],
                    )
                    assert difference == pytest.approx((whole - deleted, whole - inserted), abs=1e-12)
            changes = [whole - without(np.arange(8) == position, remove, example) for position in np.flatnonzero(own)]
            np.testing.assert_allclose(found.leave_one_out[example, own], changes, atol=1e-12)
            assert found.loo_correlation[method, example] == pytest.approx(
                kendall(values[example, own], np.array(changes))
            )
    np.testing.assert_array_equal(found.counts[0], [[1, 3, 6], [0, 1, 3]])


def test_the_values_of_the_mask_and_the_padding_replace_tokens() -> None:
    for name, number in (("mask", Tokenizer.mask_token_id), ("pad", Tokenizer.pad_token_id)):
        by_name = measured(scores(), remove=name, tokenizer=Tokenizer())
        by_id = measured(scores(), remove=number, tokenizer=Tokenizer())
        np.testing.assert_array_equal(by_name.deletion, by_id.deletion)


def test_a_value_can_be_removed_at_a_hidden_state() -> None:
    found = measured(
        scores(), remove="zero", at="block", curves=False, leave_one_out=False, shares=[0.5], positive=False
    )
    hidden = embgrad.gradients(curved(), BATCH, LOGIT, at="block").activations
    for example in (0, 1):
        zeros = np.where(top(scores(), example, found.counts[0, example, 0])[:, None], 0, hidden[example])
        expected = embgrad.evaluate(
            curved(), BATCH, LOGIT, override={"block": np.where(np.arange(2)[:, None, None] == example, zeros, hidden)}
        )
        assert found.comprehensiveness[0, example, 0] == pytest.approx(
            found.objective[example] - expected[example], abs=1e-12
        )


def ferret(drops: dict[int, float], values: np.ndarray) -> float:
    """Return the AOPC as ferret has it: shares with the same tokens as before, or with none, do not count."""
    counts = [min(int(share * len(values)), int((values > 0).sum())) for share in np.arange(0.1, 1.1, 0.1)]
    return float(np.mean([drops[count] for count in dict.fromkeys(counts) if count]))


def test_without_repeats_the_means_are_those_of_ferret() -> None:
    values = np.where(scores() > -0.3, scores(), -1)
    found = measured(values, skip_repeats=True)
    for example, own in enumerate(REMOVABLE):
        removed, kept = {}, {}
        for count in range(own.sum() + 1):
            first = top(values, example, count)
            whole = without(np.zeros(8, bool), "delete", example)
            removed[count] = whole - without(first, "delete", example)
            kept[count] = whole - without(own & ~first, "delete", example)
        assert found.aopc_comprehensiveness[0, example] == pytest.approx(
            ferret(removed, values[example, own]), abs=1e-12
        )
        assert found.aopc_sufficiency[0, example] == pytest.approx(ferret(kept, values[example, own]), abs=1e-12)


def test_scores_without_a_positive_one_remove_nothing() -> None:
    for skip_repeats in (False, True):
        found = measured(-np.abs(scores()), skip_repeats=skip_repeats)
        np.testing.assert_array_equal(found.counts, 0)
        np.testing.assert_array_equal(found.aopc_comprehensiveness, 0)
        np.testing.assert_allclose(found.aopc_sufficiency, (found.objective - found.insertion[:, :, 0]), rtol=1e-12)


def test_without_either_of_two_equal_neighbours_a_text_is_the_same() -> None:
    batch = embgrad.TokenBatch([[2, 7, 7, 8, 5]], tokens=[["[CLS]", "a", "a", "b", "[SEP]"]])
    found = embgrad.metrics.faithfulness(
        curved("float32"), batch, embgrad.Logit(0), np.array([[0.0, 3.0, 1.0, 2.0, 0.0]])
    )
    assert found.leave_one_out is not None
    assert found.leave_one_out[0, 1] == found.leave_one_out[0, 2] != found.leave_one_out[0, 3]
    texts = [[2, 7, 7, 8, 5], [2, 7, 8, 5], [2, 7, 7, 5], [2, 7, 5], [2, 5]]
    assert found.provenance["texts"] == len(texts)


def test_equal_scores_are_ranked_by_position() -> None:
    tied, falling = np.zeros(IDS.shape), np.broadcast_to(-np.arange(8.0), IDS.shape)
    found = measured({"tied": tied, "falling": falling})
    np.testing.assert_array_equal(found.deletion[0], found.deletion[1])
    assert np.isnan(found.loo_correlation[0]).all()
    assert np.isnan(found.means["tied"]["loo_correlation"])
    assert "–" in found.table()


def test_an_example_of_special_tokens_alone_has_documented_values() -> None:
    batch = embgrad.TokenBatch([[2, 5]], tokens=[["[CLS]", "[SEP]"]])
    found = measured(np.ones((1, 2)), batch=batch)
    whole = embgrad.evaluate(curved(), batch, LOGIT)
    assert found.tokens == 0
    for metric in (found.aopc_comprehensiveness, found.aopc_sufficiency, found.leave_one_out):
        assert not metric.any()
    assert np.isnan(found.loo_correlation).all()
    assert found.deletion_area[0] == found.insertion_area[0] == pytest.approx(whole)


def test_special_tokens_can_be_removed_as_well() -> None:
    found = measured(scores(), remove="zero", keep_special=False, batch=BATCH.replace(tokens=None))
    np.testing.assert_array_equal(found.tokens, [8, 5])
    np.testing.assert_array_equal(found.leave_one_out == 0, MASK == 0)
    with pytest.raises(BatchError, match="neither the batch's tokens nor a tokenizer show which tokens are special"):
        measured(scores(), batch=BATCH.replace(tokens=None))
    with pytest.raises(UnsupportedError, match=re.escape("no token of example 0 stays where all that can be")):
        measured(scores(), keep_special=False)


def test_padding_and_other_examples_change_nothing() -> None:
    left = embgrad.TokenBatch(np.roll(IDS[1:], 3, 1), np.roll(MASK[1:], 3, 1), tokens=[np.roll(TOKENS[1], 3).tolist()])
    alone = measured(np.roll(scores()[1:], 3, 1), batch=left)
    both = measured(scores())
    np.testing.assert_allclose(alone.deletion[0, 0], both.deletion[0, 1, :4], atol=1e-12)
    np.testing.assert_allclose(alone.leave_one_out[0, 4:7], both.leave_one_out[1, 1:4], atol=1e-12)


def per_position(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
    rows = lookup(model["E"], input_ids)
    return (rows + rows.sum(1).reshape(-1, 1, DIM)).tanh() @ model["W"]


def tagger() -> ReferenceModel:
    random = np.random.default_rng(0)
    return ReferenceModel(
        per_position, {"E": random.normal(size=(VOCAB, DIM)), "W": random.normal(size=(DIM, CLASSES))}
    )


@pytest.mark.parametrize("position", [3, -1, [3, 2]])
def test_an_objective_reads_the_same_token_after_deletion(position: Any) -> None:
    objective = embgrad.Logit(0, position=position)
    columns = np.broadcast_to(position, 2)
    found = measured(scores(), tagger(), objective)
    for example, own in enumerate(REMOVABLE):
        own = own & (np.arange(8) != columns[example])
        assert found.tokens[example] == own.sum()
        for removed in np.flatnonzero(own):
            stays = MASK[example].astype(bool) & (np.arange(8) != removed)
            column = columns[example] - (columns[example] > removed)
            objective = embgrad.Logit(0, position=column if columns[example] >= 0 else -1)
            shorter = embgrad.evaluate(tagger(), [IDS[example, stays]], objective)[0]
            assert found.leave_one_out[example, removed] == pytest.approx(found.objective[example] - shorter, abs=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"remove": "deletion"}, "remove is 'deletion': expected 'delete', 'pad', 'mask', 'zero', or the id"),
        ({"remove": -1}, "remove is -1: expected 'delete'"),
        ({"remove": True}, "remove is True: expected 'delete'"),
        ({"shares": [0, 0.5]}, "shares is [0, 0.5]: expected numbers above 0 and at most 1 that rise"),
        ({"shares": [0.5, 1.5]}, "shares is [0.5, 1.5]: expected numbers above 0"),
        ({"shares": [0.5, 0.1]}, "shares is [0.5, 0.1]: expected numbers above 0"),
        ({"shares": [float("nan")]}, "shares is [nan]: expected numbers above 0"),
        ({"shares": []}, "shares is []: expected numbers above 0"),
        ({"shares": [[0.1], [0.2, 0.3]]}, "shares is [[0.1], [0.2, 0.3]]: expected numbers above 0"),
        ({"shares": "half"}, "shares is 'half': expected numbers above 0"),
        ({"positive": 1}, "positive is 1: expected True or False"),
        ({"keep_special": "yes"}, "keep_special is 'yes': expected True or False"),
        ({"at": ["word"]}, "at is ['word']: expected the name of a point"),
        ({"remove": "mask"}, "the id of the mask is not known"),
        ({"remove": 99}, "id 99 at example 0, position 1 is outside the table"),
        ({"batch_size": 0}, "batch_size is 0: expected a whole number of at least 1"),
        ({"objective": embgrad.Scalar(lambda output: output.sum())}, "a Scalar objective reduces over the batch"),
    ],
)  # fmt: skip
def test_an_option_that_is_none_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(embgrad.EmbgradError, match=re.escape(message)):
        measured(scores(), **options)


def test_an_attribution_of_another_batch_is_refused() -> None:
    attribution = embgrad.attribute(curved(), BATCH, LOGIT, "saliency")
    other = IDS.copy()
    other[1, 2] = 10
    padded = np.where(np.arange(8) < 4, MASK, 0)
    for batch, message in (
        (
            BATCH.replace(ids=other, tokens=TOKENS),
            "is of another batch: at example 1, position 2 it has the id 9, and the batch the id 10",
        ),
        (BATCH[:1], "the attribution 'saliency' has scores of shape (2, 8), and the batch (1, 8): expected an attribution"),
    ):  # fmt: skip
        with pytest.raises(embgrad.EmbgradError, match=re.escape(message)):
            measured(attribution, batch=batch)
    of_shorter = embgrad.attribute(curved(), BATCH.replace(mask=padded), LOGIT, "saliency")
    with pytest.raises(embgrad.EmbgradError, match="at example 0, position 4 it has padding, and the batch the id 1"):
        measured(of_shorter)


@pytest.mark.parametrize(
    ("attribution", "message"),
    [
        ([], "attribution is []: expected one attribution at least"),
        ({1: np.zeros(IDS.shape)}, "attribution names a method 1: expected names that are text"),
        ("saliency", "the attribution 'scores' is 'saliency': expected what embgrad.attribute returns"),
        ({"a": np.zeros(8)}, "the attribution 'a' is [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]: expected what"),
        ({"a": np.array(["x"])}, "the attribution 'a' is ['x']: expected what embgrad.attribute returns, or an array of scores"),
        ({"a": np.ma.masked_array(np.zeros(IDS.shape))}, "the attribution 'a' is [[0.0"),
        (np.where(np.arange(16).reshape(2, 8) == 2, np.nan, 0), "the attribution 'scores' are nan at example 0, position 2"),
        ({"a": np.where(np.arange(16).reshape(2, 8) == 9, np.inf, 0)}, "the attribution 'a' are inf at example 1, position 1"),
    ],
)  # fmt: skip
def test_scores_that_cannot_be_ranked_are_refused(attribution: Any, message: str) -> None:
    with pytest.raises(embgrad.EmbgradError, match=re.escape(message)):
        measured(attribution)


def test_a_score_at_padding_or_a_special_token_may_be_anything() -> None:
    found = measured(np.where(REMOVABLE, scores(), np.nan))
    np.testing.assert_array_equal(found.deletion, measured(scores()).deletion)


def test_methods_have_the_names_of_the_attributions() -> None:
    attributions = embgrad.attribute(curved(), BATCH, LOGIT, ["saliency", embgrad.methods.IntegratedGradients(20)])
    assert measured(attributions).methods == ("saliency", "integrated_gradients")
    assert measured(attributions["saliency"]).methods == ("saliency",)
    listed = [attributions["saliency"], scores(), attributions["saliency"]]
    assert measured(listed).methods == ("saliency", "scores", "saliency#1")
    several, single = measured(attributions), measured(attributions["integrated_gradients"])
    np.testing.assert_array_equal(several.deletion[1], single.deletion[0])


def test_an_attribution_of_a_loss_under_another_objective_is_warned_of() -> None:
    loss = embgrad.attribute(curved(), BATCH, embgrad.CrossEntropy([0, 1]), ["input_x_gradient"])
    for attribution in (loss, list(loss.values()), loss["input_x_gradient"]):
        with pytest.warns(
            embgrad.EmbgradWarning, match="the attribution explains CrossEntropy and the objective is Probability"
        ):
            measured(attribution, objective=embgrad.Probability([0, 1]))


@pytest.mark.filterwarnings("error")
def test_an_attribution_of_the_same_loss_or_of_another_output_is_not_warned_of() -> None:
    loss = embgrad.CrossEntropy([0, 1])
    for of, objective in ((loss, loss), (LOGIT, embgrad.Probability(0)), (loss, embgrad.Sum())):
        measured(embgrad.attribute(curved(), BATCH, of, "input_x_gradient"), objective=objective)


def test_a_model_that_counts_padding_is_warned_of() -> None:
    def placed(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Any:
        weights = Tensor(np.arange(1.0, input_ids.shape[1] + 1)[:, None])
        return (lookup(model["E"], input_ids) * weights).sum(1).tanh() @ model["W"]

    random = np.random.default_rng(0)
    model = ReferenceModel(placed, {"E": random.normal(size=(12, 3)), "W": random.normal(size=(3, 2))})
    tokens = [["[PAD]", "[CLS]", "a", "b", "[SEP]"]]
    batch = embgrad.TokenBatch([[0, 2, 7, 8, 5]], [[0, 1, 1, 1, 1]], tokens=tokens)
    found = embgrad.attribute(model, batch, embgrad.Logit(0), "input_x_gradient")
    with pytest.warns(
        embgrad.EmbgradWarning, match="the attribution explains L = .* at example 0, and L is .* the model counts"
    ):
        embgrad.metrics.faithfulness(model, batch, embgrad.Logit(0), found)


def test_metrics_that_are_not_requested_are_absent_and_cost_nothing() -> None:
    full, short = measured(scores()), measured(scores(), curves=False, leave_one_out=False, shares=[0.5])
    assert short.provenance["texts"] < full.provenance["texts"] / 2
    for name in ("deletion", "insertion", "deletion_area", "insertion_area", "leave_one_out", "loo_correlation"):
        assert getattr(short, name) is None
    assert short.comprehensiveness[0, 0] == pytest.approx(full.comprehensiveness[0, 0, 4])
    assert short.table().split() == [
        "comprehensiveness",
        "↑",
        "sufficiency",
        "↓",
        "scores",
        *short.table().split()[-2:],
    ]
    assert short.to_dict()["deletion"] is None
    heads = full.table().splitlines()[0].split()
    assert dict(zip(heads[::2], heads[1::2], strict=True)) == {
        **{"comprehensiveness": "↑", "sufficiency": "↓", "leave-one-out": "↑", "deletion": "↓", "insertion": "↑"}
    }


def test_the_result_is_shown_as_a_table_and_as_json() -> None:
    found = measured({"first": scores(0), "second": scores(1)})
    lines = repr(found).splitlines()
    assert lines[0].startswith(
        "Faithfulness of 2 method(s) on 2 example(s), remove='delete', L is Logit: ReferenceModel"
    )
    assert len({line.rindex(" ") for line in lines[2:]}) == 1
    assert lines[2].split()[:2] == ["first", f"{found.aopc_comprehensiveness[0].mean():.4g}"]
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert plain["deletion"][0][1][4:] == [None] * 3
    assert plain["means"]["second"]["aopc_sufficiency"] == pytest.approx(found.aopc_sufficiency[1].mean())
    np.testing.assert_array_equal(found["second"]["comprehensiveness"], found.comprehensiveness[1])
    with pytest.raises(KeyError, match=r"no method 'secnd'\. Did you mean 'second'"):
        found["secnd"]


def test_a_plot_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    found = measured(scores())
    with pytest.raises(embgrad.EmbgradError, match=r"a plot needs the package 'matplotlib', .*embgrad\[plot\]"):
        found.plot()


def test_the_plot_draws_the_means_and_the_curves() -> None:
    found = measured({"a$b": scores(0), "_hidden": scores(1)})
    figure = found.plot()
    bars, deletion, insertion = figure.axes
    heights = [[bar.get_height() for bar in group] for group in bars.containers]
    expected = [
        found.means[method][name] for method in found.methods for name in ("aopc_comprehensiveness", "aopc_sufficiency")
    ]
    np.testing.assert_allclose(np.ravel(heights), expected)
    for panel, curve in ((deletion, found.deletion), (insertion, found.insertion)):
        line = panel.lines[0].get_ydata()
        assert line[0] == pytest.approx(curve[0, :, 0].mean())
        assert line[-1] == pytest.approx((curve[0, 0, 6] + curve[0, 1, 3]) / 2)
        assert line[50] == pytest.approx((curve[0, 0, 3] + (curve[0, 1, 1] + curve[0, 1, 2]) / 2) / 2)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a\\$b", "hidden"]
    assert len(measured(scores(), curves=False).plot().axes) == 1


def test_kendalls_tau_counts_pairs_and_ties() -> None:
    a = np.array([1.0, 2, 3, 4])
    assert kendall(a, a * 7) == 1
    assert kendall(a, -a) == -1
    assert kendall(a, np.array([1.0, 3, 2, 4])) == pytest.approx(4 / 6)
    assert kendall(a, np.array([1.0, 1, 2, 2])) == pytest.approx(4 / np.sqrt(6 * 4))
    assert np.isnan(kendall(a, np.ones(4)))
    assert np.isnan(kendall(a[:1], a[:1]))
