"""What all searches have in common: their arguments, their record, and the model, which they leave as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.errors import BatchError, ObjectiveError, UnsupportedError
from embgrad.token_search.stability import stability_of
from tests.unit.token_search.models import BATCH, IDS, Letters, curved, linear, per_position

LOGIT = embgrad.Logit(1)


def refused(message: str, error: type[Exception] = embgrad.EmbgradError, **options: Any) -> None:
    """Assert that a search with these options is refused with this message."""
    arguments = {"method": embgrad.methods.HotFlip(steps=1), "batch": BATCH, "objective": LOGIT, **options}
    with pytest.raises(error) as raised:
        embgrad.search(curved(), **arguments)
    assert message in str(raised.value)


def test_a_method_may_be_named() -> None:
    found = embgrad.search(curved(), BATCH, LOGIT, "hotflip")
    assert found.provenance["method"] == {
        "class": "HotFlip",
        "steps": 5,
        "beam": 4,
        "candidates": 256,
        "insert": False,
        "delete": False,
    }


def test_wrong_arguments_are_named() -> None:
    refused("method is 'hot_flip': expected a method, such as embgrad.methods.HotFlip()", method="hot_flip")
    refused("Did you mean 'hotflip'?", method="hotflop")
    refused("the method is the class GCG: expected an instance; write GCG(...)", method=embgrad.methods.GCG)
    refused("goal is 'minimise': expected 'maximize' or 'minimize'", goal="minimise")
    refused("until is 'soon': expected the L at which", until="soon")
    refused("one for each of the 2 examples", until=[0.0, 1.0, 2.0])
    refused("until is nan", until=float("nan"))
    refused("stable is 1: expected True or False", stable=1)
    refused("training is 1: expected True or False", training=1)
    refused("until is [0.0, inf]: expected the L", until=[0.0, float("inf")])
    refused("a Scalar objective reduces over the batch", UnsupportedError, objective=embgrad.Scalar(np.sum))


def test_what_does_not_fit_the_model_is_refused_before_the_search() -> None:
    refused("index 7", ObjectiveError, objective=embgrad.Logit(7))
    with pytest.raises(BatchError, match="outside"):
        embgrad.search(curved(), [[1, 99]], LOGIT, "hotflip")


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_text_that_the_search_tried_is_named_as_such() -> None:
    model = linear()
    model["W"].value[0, 1] = 4.0
    model["E"].value[6] = [4e307, 0.0, 0.0]  # the logit of a text that holds it twice is infinite
    with pytest.raises(ObjectiveError, match="at a text that the search tried in place of one of the examples 0 to 1"):
        embgrad.search(model, BATCH, LOGIT, embgrad.methods.GCG(steps=2, candidates=99))
    with pytest.raises(ObjectiveError, match="at a text that the search tried in place of example 0"):
        embgrad.search(model, BATCH, LOGIT, embgrad.methods.GCG(steps=2, candidates=99), batch_size=1)


def test_the_tokens_that_a_language_model_is_to_predict_are_searched_only_where_they_are_named() -> None:
    model, ids = per_position(), np.array([[1, 2, 3, 4, 5]])
    target = embgrad.LogProbability([[-100, -100, -100, 4, 5]])
    found = embgrad.search(model, ids, target, embgrad.methods.GCG(steps=3, candidates=9))
    assert found.batch.ids[0, 3:].tolist() == [4, 5]
    named = embgrad.search(model, ids, target, embgrad.methods.GCG(steps=3, candidates=9), positions=[3])
    assert named.batch.ids[0, [0, 1, 2, 4]].tolist() == [1, 2, 3, 5]
    assert named.batch.ids[0, 3] != 4


def test_the_record_of_a_search_begins_before_the_first_step() -> None:
    steps: list[tuple[int, Any]] = []
    found = embgrad.search(
        curved(), BATCH, LOGIT, embgrad.methods.GCG(steps=3, candidates=4), progress=lambda *done: steps.append(done)
    )
    assert steps == [(0, 3), (1, 3), (2, 3), (3, 3)]
    history = found.history
    np.testing.assert_array_equal(history.ids[0], IDS)
    np.testing.assert_array_equal(history.ids[-1], found.batch.ids)
    np.testing.assert_array_equal(history.objective[[0, -1]], [found.objective_before, found.objective])
    np.testing.assert_array_equal(history.evaluations, [[1, 1], [5, 5], [9, 9], [13, 13]])
    np.testing.assert_array_equal(history.gradients, [[0, 0], [1, 1], [2, 2], [3, 3]])
    assert (np.diff(history.seconds) >= 0).all()
    assert history.seconds[0] >= 0


def test_without_a_rule_there_is_no_success() -> None:
    found = embgrad.search(curved(), BATCH, LOGIT, embgrad.methods.GCG(steps=1, candidates=2))
    assert found.success is None
    assert found.provenance["until"] is None
    assert embgrad.search(curved(), BATCH, LOGIT, "gcg", until=-100).success is not None


def test_pieces_of_any_size_find_the_same() -> None:
    runs = [
        embgrad.search(curved(), BATCH, LOGIT, embgrad.methods.HotFlip(steps=2), batch_size=size)
        for size in (None, 1, 3, 50)
    ]
    for run in runs[1:]:
        np.testing.assert_array_equal(run.batch.ids, runs[0].batch.ids)
        np.testing.assert_allclose(run.objective, runs[0].objective, atol=1e-12)


def test_labels_for_each_example_follow_their_texts() -> None:
    objective = embgrad.CrossEntropy([1, 0])
    found = embgrad.search(curved(), BATCH, objective, embgrad.methods.HotFlip(steps=2), batch_size=3)
    np.testing.assert_allclose(embgrad.evaluate(curved(), found.batch, objective), found.objective, atol=1e-12)
    alone = embgrad.search(curved(), BATCH[1:], embgrad.CrossEntropy([0]), embgrad.methods.HotFlip(steps=2))
    np.testing.assert_array_equal(alone.batch.ids[0], found.batch.ids[1])


class TestStability:
    """Which texts come back from a tokenizer."""

    def test_ids_that_the_tokenizer_would_merge_do_not_come_back(self) -> None:
        stability = stability_of(embgrad.TokenBatch([[2, 3]]), Letters())
        texts = [np.array(row) for row in ([0, 2, 1], [0, 1, 2], [11], [1, 0], [0, 11])]
        assert stability.of(texts).tolist() == [True, False, True, True, True]

    def test_a_batch_whose_own_ids_do_not_come_back_is_refused(self) -> None:
        refused(
            "example 1 holds the ids [0, 1], and its text tokenises to [11]",
            BatchError,
            batch=[[2, 3], [0, 1]],
            tokenizer=Letters(),
        )
        found = embgrad.search(curved(), [[2, 3], [0, 1]], LOGIT, "hotflip", tokenizer=Letters(), stable=False)
        assert found.texts_before == ("cd", "ab")

    def test_a_space_before_the_first_word_alone_is_added_as_to_what_users_type(self) -> None:
        """As Llama's tokenizer does it: after a special token in the text it would add none, and other texts would come back."""
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

        pieces = ["<s>", "</s>", "<unk>", "▁", "p", "▁p", "▁bad", "▁film", "bad"]
        made = Tokenizer(models.WordLevel({piece: number for number, piece in enumerate(pieces)}, unk_token="<unk>"))
        made.add_special_tokens(["<s>", "</s>"])
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        made.decoder = decoders.Metaspace(prepend_scheme="first")
        made.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A </s> $B", [("<s>", 0), ("</s>", 1)])
        first = stability_of(embgrad.encode(["bad film"], made), made)
        texts = [[0, 6, 7], [0, 5, 6, 7], [0, 4, 6, 7]]  # the last is typed as "p bad film", whose first token is "▁p"
        assert first.of([np.array(text) for text in texts]).tolist() == [True, True, False]
        pair = stability_of(embgrad.encode([("bad film", "p")], made), made)
        assert pair.of([np.array([0, 6, 7, 1, 5]), np.array([0, 4, 6, 1, 5])]).tolist() == [True, False]
        for turns in ([1, 0, 6, 1, 0, 7], [0, 6, 1, 5, 1, 7]):
            assert stability_of(embgrad.TokenBatch([turns]), made).of([np.array(turns)]).tolist() == [True]

    def test_a_tokenizer_that_decodes_nothing_is_refused(self) -> None:
        class Names:
            all_special_ids = ()

            def convert_ids_to_tokens(self, number: int) -> str:
                return f"t{number}"

            def get_vocab(self) -> dict[str, int]:
                return {f"t{number}": number for number in range(12)}

        refused("a Names without a method decode(ids)", UnsupportedError, tokenizer=Names())
        assert embgrad.search(curved(), BATCH, LOGIT, "hotflip", tokenizer=Names(), stable=False).texts is None
