"""The diagnosis runs the models again, and names causes inside both."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooLate
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.comparison.diagnosis import diagnose
from embgrad.comparison.findings import Finding
from embgrad.engine.weights import substitute, weights_of
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.comparison import ported
from tests.unit.comparison.test_diagnosis import (
    BATCH,
    DIM,
    HEAD,
    IDS,
    LABELS,
    MASK,
    OBJECTIVE,
    TABLE,
    causes,
    classifier,
    single,
)

RANDOM = np.random.default_rng(4)

pytestmark = pytest.mark.filterwarnings("ignore:the model cannot take the mask")


class TestModels:
    def compared(self, b: Any, models: Any, a: Any = None) -> embgrad.results.Comparison:
        comparison: embgrad.results.Comparison = embgrad.compare(
            a or embgrad.gradients(classifier(), BATCH, OBJECTIVE), b, models=models
        )
        return comparison

    @pytest.mark.parametrize(
        ("batch", "objective", "expected"),
        [
            (BATCH, embgrad.Sum(), "sum-objective"),
            (BATCH, embgrad.CrossEntropy((LABELS + 1) % 5), "label-shift"),
            (BATCH, embgrad.CrossEntropy(np.roll(LABELS, 1)), "label-shift"),
            (BATCH, embgrad.Logit(LABELS), "other-objective"),
            (BATCH, embgrad.Margin(LABELS, (LABELS + 2) % 5), "other-objective"),
            (embgrad.TokenBatch(IDS), OBJECTIVE, "mask-ignored"),
        ],
    )
    def test_a_different_call_is_named(self, batch: Any, objective: Any, expected: str) -> None:
        model = classifier()
        b = embgrad.gradients(model, batch, objective)
        assert causes(self.compared(b, (model, None)))[0] == (expected,)

    def test_a_different_call_is_named_beside_a_rearrangement(self) -> None:
        model = classifier()
        b = embgrad.gradients(model, BATCH, embgrad.Sum())
        values = np.zeros_like(b.values)
        values[:, 1:] = b.values[:, :-1]
        assert causes(self.compared(replace(b, values=values), (model, None)))[0] == ("sum-objective", "position-shift")

    def test_a_probability_is_named(self) -> None:
        model = classifier()
        a = embgrad.gradients(model, BATCH, embgrad.Logit(LABELS))

        def probability(outputs: Any) -> Any:
            return (outputs.softmax() * np.eye(5)[LABELS]).sum(1)

        b = embgrad.gradients(model, BATCH, probability)
        assert causes(self.compared(b, (model, None), a))[0] == ("probability-objective",)

    def test_a_different_table_is_named(self) -> None:
        other = classifier({"E": TABLE + 0.1 * RANDOM.normal(size=TABLE.shape)})
        b = embgrad.gradients(other, BATCH, OBJECTIVE)
        for models in ((classifier(), None), (None, other), (classifier(), other)):
            assert causes(self.compared(b, models))[0] == ("different-table",)

    def test_causes_inside_the_models_and_outside_are_named_together(self) -> None:
        first, second = ported.model(), ported.model(epsilon=0.5)
        objective = embgrad.CrossEntropy([0, 3, 1], position=0)
        a, b = (embgrad.gradients(model, ported.BATCH, objective) for model in (first, second))
        b = replace(b, values=b.values / 3)
        best = embgrad.compare(a, b, models=(first, second)).findings[0]
        assert best.causes == ("layer-norm-epsilon", "mean-over-batch")
        assert best.text.startswith("epsilon 0.01 in a and 0.5 in b, layers 0–2, and a factor 0.333333 = 1/3")
        assert best.explained == pytest.approx(1.0)
        turned = embgrad.compare(b, a, models=(second, first)).findings[0]
        assert turned.causes == ("layer-norm-epsilon", "mean-over-batch")
        assert turned.side == "a"

    def test_what_the_models_explain_is_measured(self) -> None:
        first, second = ported.model(), ported.model(epsilon=0.5)
        a, b = (
            embgrad.gradients(model, ported.BATCH, embgrad.CrossEntropy([0, 3, 1], position=0))
            for model in (first, second)
        )
        noise = RANDOM.normal(size=b.shape)
        little = noise * 0.1 * np.linalg.norm(b.values - a.values) / np.linalg.norm(noise)
        for factor, explained in ((1.0, 0.99), (1.006, 0.966)):  # the latter is further off than a factor may be
            other = replace(b, values=factor * b.values + little)
            best = embgrad.compare(a, other, models=(first, second)).findings[0]
            assert best.causes == ("layer-norm-epsilon",)
            assert best.explained == pytest.approx(explained, abs=2e-3)
        much = embgrad.compare(a, replace(b, values=noise), models=(first, second))
        assert much.findings == ()
        assert any(
            note.startswith(
                "the models differ, too, which explains little of the difference: epsilon 0.01 in a and 0.5 in b"
            )
            for note in much.notes
        )

    def test_models_are_not_run_where_a_number_explains_everything(self) -> None:
        def broken(model: Any, input_ids: Any) -> Any:
            raise RuntimeError("no device")

        a = embgrad.gradients(classifier(), BATCH, OBJECTIVE)
        comparison = self.compared(replace(a, values=-a.values), (ReferenceModel(broken, {}), None), a)
        assert (causes(comparison), comparison.notes) == ([("sign",)], ())

    def test_models_explain_a_gradient_of_zeros(self) -> None:
        first, second = ported.model(), ported.model({"head.W": 0 * ported.W["head.W"]})
        a, b = (embgrad.gradients(model, ported.BATCH, embgrad.Sum()) for model in (first, second))
        (found,) = embgrad.compare(a, b, models=(first, second)).findings
        assert (found.causes, found.explained, found.remaining) == (("different-weight",), 1.0, 0.0)

    def test_a_model_that_cannot_be_asked_the_same_is_a_note(self) -> None:
        small = ReferenceModel(
            lambda model, input_ids: lookup(model["E"], input_ids).sum(1) @ model["W"], {"E": TABLE[:6], "W": HEAD}
        )
        b = replace(single(), values=RANDOM.normal(size=(3, 7, DIM)))
        comparison = self.compared(b, (classifier(), small))
        start = "b's model cannot be run as a's was, so causes inside the models were not tested: "
        assert any(note.startswith(start) for note in comparison.notes)

    def test_models_without_parts_in_common_are_a_note(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails(*_: Any, **__: Any) -> Any:
            raise embgrad.errors.EmbgradError("the two models have nothing in common")

        monkeypatch.setattr("embgrad.comparison.diagnosis.models.check_port", fails)
        other = classifier({"W": HEAD + 0.1 * RANDOM.normal(size=HEAD.shape)})
        comparison = self.compared(embgrad.gradients(other, BATCH, OBJECTIVE), (classifier(), other))
        assert comparison.findings == ()
        assert "causes inside the models could not be tested: the two models have nothing in common" in comparison.notes

    def test_the_check_of_the_models_is_left_out_where_they_agree(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails(*_: Any, **__: Any) -> Any:
            raise AssertionError("no check is needed")

        monkeypatch.setattr("embgrad.comparison.diagnosis.models.check_port", fails)
        b = replace(single(), values=RANDOM.normal(size=(3, 7, DIM)))
        assert self.compared(b, (classifier(), classifier())).findings == ()

    def test_a_gradient_that_departs_behind_equal_values_is_said(self) -> None:
        def half(x: Any) -> Any:
            return Tensor(x.value, [(x, lambda g: g * np.linspace(0.5, 1.5, g.shape[-1]))])

        first, second = ported.model(), ported.model(at={"layers.1.mix": half})
        a, b = (
            embgrad.gradients(model, ported.BATCH, embgrad.CrossEntropy([0, 3, 1], position=0))
            for model in (first, second)
        )
        comparison = embgrad.compare(a, b, models=(first, second))
        assert comparison.findings == ()
        assert any("without a known cause" in note for note in comparison.notes)

    def test_ids_alone_are_named(self) -> None:
        def forward(model: Any, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None) -> Any:
            rows = lookup(model["E"], input_ids)
            rows = rows if token_type_ids is None else rows + lookup(model["T"], token_type_ids)
            rows = rows if attention_mask is None else rows * attention_mask[:, :, None]
            return rows.tanh().sum(1).tanh() @ model["W"]

        model = ReferenceModel(forward, {"E": TABLE, "T": TABLE[:2] / 2, "W": HEAD})
        types = np.where(np.arange(7) > 2, MASK, 0)
        a = embgrad.gradients(model, embgrad.TokenBatch(IDS, MASK, types), OBJECTIVE)
        b = embgrad.gradients(model, embgrad.TokenBatch(IDS), OBJECTIVE)
        comparison = embgrad.compare(a, replace(b, mask=MASK, types=types), models=(model, None))
        assert set(causes(comparison)[0]) == {"types-ignored", "mask-ignored"}
        assert "ran with the ids alone" in comparison.findings[0].text

    def test_a_different_weight_is_named(self) -> None:
        other = classifier({"W": HEAD + 0.1 * RANDOM.normal(size=HEAD.shape)})
        comparison = self.compared(embgrad.gradients(other, BATCH, OBJECTIVE), (classifier(), other))
        assert causes(comparison)[0] == ("different-weight",)
        assert comparison.findings[0].explained is None
        assert (
            str(comparison.findings[0])
            == "not measured: the weights W (different); the models differ at output without a known cause"
        )

    def test_different_ids_are_named(self) -> None:
        model = classifier()
        b = embgrad.gradients(model, embgrad.TokenBatch(IDS + 1, MASK), OBJECTIVE)
        b = replace(b, ids=IDS)  # a vocabulary that is off by one is not seen in the ids
        comparison = self.compared(b, (model, None))
        assert causes(comparison)[0] == ("other-ids",)
        assert "2 for the id 1 at example 0, position 0" in comparison.findings[0].text

    @pytest.mark.parametrize("kept", [0.5, 1.0])
    def test_a_model_that_draws_random_numbers_is_named(self, kept: float) -> None:
        random = np.random.default_rng(9)

        def forward(model: Any, input_ids: Any, attention_mask: Any) -> Any:
            rows = lookup(model["E"], input_ids) * (random.random((*input_ids.shape, 1)) < kept) * (1 / kept)
            return (rows * attention_mask[:, :, None]).sum(1) @ model["W"]

        model = ReferenceModel(forward, {"E": TABLE, "W": HEAD})
        a, b = (embgrad.gradients(model, BATCH, embgrad.Sum()) for _ in range(2))
        found = [finding for finding in self.compared(b, (model, None), a).findings if finding.causes == ("dropout",)]
        if kept == 1:
            assert found == []
            return
        (finding,) = found
        assert finding.side == "a"
        assert finding.explained is not None
        assert 0.5 < finding.explained < 1
        # Half of the rows are zeros and the others twice as large: off the mean by their own size.
        assert finding.text.startswith("dropout: a's model gives another gradient each time it is run, in evaluation")
        assert 0.5 < float(finding.text.partition("mode too, ")[2].split()[0]) < 1
        assert finding.text.endswith("off its own mean (over 6 runs)")
        assert finding.remaining is not None
        distance = np.linalg.norm(b.values - a.values) / np.linalg.norm(a.values)
        assert finding.remaining == pytest.approx(distance * (1 - finding.explained) ** 0.5, rel=1e-6)

    def test_a_model_that_reproduces_its_result_may_be_random_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A framework's generator is restored after each run."""
        drawn = Finding(("dropout",), "draws", 0.4, 0.6, "a")
        monkeypatch.setattr(diagnose, "random_model", lambda source: drawn)
        b = replace(single(), values=np.random.default_rng(1).normal(size=(3, 7, DIM)))
        assert self.compared(b, (classifier(), None)).findings == (drawn,)
        assert (
            drawn
            not in self.compared(embgrad.gradients(classifier(), BATCH, embgrad.Sum()), (classifier(), None)).findings
        )

    def test_the_models_are_restored(self) -> None:
        model, other = classifier(), classifier({"W": HEAD * 1.1})
        before = {name: model.parameters[name].value.copy() for name in model.parameters}
        b = replace(embgrad.gradients(other, BATCH, OBJECTIVE), values=RANDOM.normal(size=(3, 7, DIM)))
        self.compared(b, (model, other))
        for name, value in before.items():
            np.testing.assert_array_equal(model.parameters[name].value, value)

    def test_a_native_objective_cannot_be_run_again(self) -> None:
        model = classifier()
        a = embgrad.gradients(model, BATCH, lambda outputs: outputs.sum(1))
        comparison = self.compared(replace(a, values=RANDOM.normal(size=a.shape)), (model, None), a)
        assert comparison.findings == ()
        assert any(
            "a's objective was a function" in note and "expected one of embgrad's" in note for note in comparison.notes
        )

    def test_a_model_that_does_not_reproduce_the_result_is_a_note(self) -> None:
        wrong = classifier({"W": HEAD * 2})
        b = replace(single(), values=RANDOM.normal(size=(3, 7, DIM)))
        comparison = self.compared(b, (wrong, None))
        assert comparison.findings == ()
        assert any("a's model does not reproduce a when it is run again" in note for note in comparison.notes)

    def test_a_model_that_cannot_run_is_a_note(self) -> None:
        def broken(model: Any, input_ids: Any) -> Any:
            raise RuntimeError("no device")

        b = replace(single(), values=RANDOM.normal(size=(3, 7, DIM)))
        comparison = self.compared(b, (ReferenceModel(broken, {"E": TABLE}), None))
        assert comparison.figures.relative_l2 > 0.5
        assert any("RuntimeError: no device" in note for note in comparison.notes)

    @pytest.mark.parametrize("period", [2, 3, 5, 7])  # some of the runs are made to think up causes
    def test_a_model_that_fails_now_and_then_is_a_note(self, period: int) -> None:
        runs = []

        def forward(model: Any, input_ids: Any, attention_mask: Any) -> Any:
            runs.append(1)
            if len(runs) % period == 0:
                raise RuntimeError("now and then")
            return (lookup(model["E"], input_ids) * attention_mask[:, :, None]).sum(1).tanh() @ model["W"]

        b = replace(single(), values=RANDOM.normal(size=(3, 7, DIM)))
        comparison = self.compared(b, (ReferenceModel(forward, {"E": TABLE, "W": HEAD}), None))
        assert comparison.findings == ()
        assert any("RuntimeError: now and then" in note for note in comparison.notes)

    @pytest.mark.parametrize("options", [{"batch_size": 2}, {"split": True}, {"pads": "zero"}])
    def test_a_result_is_reproduced_with_its_options(self, options: Any) -> None:
        def forward(model: Any, input_ids: Any, attention_mask: Any) -> Any:
            rows = lookup(model["E"], input_ids).tanh()
            own = (rows * (attention_mask[:, :, None] + 0.1)).sum(1) @ model["W"]
            return own if "batch_size" in options else own * own.sum(0).tanh()

        def model(weights: np.ndarray) -> ReferenceModel:
            return ReferenceModel(forward, {"E": TABLE, "W": weights})

        second = model(HEAD + 0.1 * RANDOM.normal(size=HEAD.shape))
        a, b = (embgrad.gradients(first, BATCH, OBJECTIVE, **options) for first in (model(HEAD), second))
        assert a.provenance["objective"]["labels"] == LABELS.tolist()
        comparison = embgrad.compare(a, b, models=(model(HEAD), second))
        assert causes(comparison)[0] == ("different-weight",)
        assert comparison.notes == ()

    def test_labels_in_another_order_are_named(self) -> None:
        model = classifier()
        order = [2, 0, 1]
        b = embgrad.gradients(model, embgrad.TokenBatch(IDS[order], MASK[order]), OBJECTIVE)
        comparison = self.compared(b, (model, None))
        assert comparison.findings[0].explained == pytest.approx(1.0)
        assert set(causes(comparison)[0]) <= {"other-objective", "label-shift"}

    def test_a_finding_says_how_two_objectives_differ(self) -> None:
        model = classifier()
        b = embgrad.gradients(model, BATCH, embgrad.CrossEntropy([4, 0, 3]))
        text = self.compared(b, (model, None)).findings[0].text
        assert "CrossEntropy(labels=[4, 0, 3]" in text

    def test_different_ids_are_not_a_different_table(self) -> None:
        model = classifier()
        ids = np.where(MASK, (IDS * 7 + 5) % 19 + 1, 0)
        b = embgrad.gradients(model, embgrad.TokenBatch(ids, MASK), OBJECTIVE)
        assert causes(self.compared(b, (model, None))) == [("other-ids",)]

    def test_a_mean_over_labels_is_named(self) -> None:
        labels = np.where(MASK, IDS % 5, -100)
        labels[:, 0] = labels[2, 3:5] = -100

        def forward(model: Any, input_ids: Any) -> Any:
            return lookup(model["E"], input_ids).tanh() @ model["W"]

        model = ReferenceModel(forward, {"E": TABLE, "W": HEAD})
        a = embgrad.gradients(model, BATCH, embgrad.CrossEntropy(labels))
        b = replace(
            a, values=a.values / (labels != -100).sum(), provenance={**a.provenance, "objective": {"class": "Scalar"}}
        )
        comparison = embgrad.compare(a, b)
        assert causes(comparison)[0] == ("mean-over-tokens",)
        assert "that have a label" in comparison.findings[0].text

    def test_threads_do_not_read_substituted_weights(self) -> None:
        model = classifier()
        head = next(weight for weight in weights_of(model) if weight.name == "W")
        with ThreadPoolExecutor(1) as pool:
            with substitute(model, {"W": HEAD * 2}):
                read = pool.submit(head.get)
                with pytest.raises(TooLate):
                    read.result(timeout=0.3)
            np.testing.assert_array_equal(read.result(timeout=10), HEAD)
