"""The conformance checks of calls: what `call=` receives, extra inputs, models in parts, and mistaken arguments."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import numpy as np
import pytest

import embgrad
from embgrad.testing.examples import VOCAB, close, example_batch, needs

__all__ = ["CallChecks", "PartChecks"]

IDS: Final = example_batch().ids
MASK: Final = example_batch(masked=True).real.astype(np.int64)
OBJECTIVE: Final = embgrad.Projection([1.0, -2.0, 0.5])


class CallChecks:
    """The checks of calls that every backend must pass."""

    @pytest.mark.parametrize(
        "batch",
        [
            {"input_ids": IDS},
            {"input_ids": IDS, "attention_mask": MASK},
            {"input_word_ids": IDS},
            {"input_word_ids": IDS, "input_mask": MASK},
            {"token_ids": IDS, "padding_mask": MASK, "position_ids": IDS},
        ],
        ids=" ".join,
    )
    def test_call_receives_the_keys_that_were_passed(self, model: Any, batch: dict[str, Any]) -> None:
        seen = []

        def call(built: Any, inputs: Any) -> Any:
            seen.append({name: tuple(map(int, value.shape)) for name, value in inputs.items()})
            return built(inputs[next(iter(batch))])

        embgrad.gradients(model("mean"), batch, OBJECTIVE, call=call)
        assert seen
        for inputs in seen:
            assert inputs == {name: np.shape(value) for name, value in batch.items()}

    def test_what_a_pass_writes_to_an_extra_input_is_discarded(self, model: Any) -> None:
        built = model("mean")
        past: list[float] = []
        expected = embgrad.gradients(built, IDS, OBJECTIVE).values

        def call(built: Any, inputs: Any) -> Any:
            inputs["past"].append(1.0)
            return built(inputs["input_ids"]) * float(len(inputs["past"]))

        batch = {"input_ids": IDS, "past": past}
        for override in ({}, {"word": lambda rows: rows}):
            result = embgrad.gradients(built, batch, OBJECTIVE, call=call, override=override)
            close(result.values, expected, 1e-12)
            assert past == []

    def test_what_a_pass_writes_to_containers_of_the_model_is_discarded(self, model: Any) -> None:
        built = model("mean")
        kept = {"lists": {"keys": [1.0]}, "queue": deque([1.0, 2.0], maxlen=2)}
        for name, value in kept.items():
            setattr(built, name, value)

        def call(built: Any, inputs: Any) -> Any:
            built.lists["keys"].append(float(len(built.lists["keys"])))
            built.queue.append(built.queue[-1] + 1.0)
            return built(inputs["input_ids"]) * (sum(built.lists["keys"]) + built.queue[0])

        def failing(built: Any, inputs: Any) -> Any:
            call(built, inputs)
            raise RuntimeError("the call broke")

        batch = {"input_ids": IDS}
        first, second = (embgrad.gradients(built, batch, OBJECTIVE, call=call).values for _ in range(2))
        with pytest.raises(RuntimeError, match="the call broke"):
            embgrad.gradients(built, batch, OBJECTIVE, call=failing)
        assert dict(built.lists) == {"keys": [1.0]}
        assert list(built.queue) == [1.0, 2.0]
        built.lists["keys"].append(2.0)  # the user's own change counts from now on
        third = embgrad.gradients(built, batch, OBJECTIVE, call=call).values
        plain = embgrad.gradients(built, batch, OBJECTIVE).values
        for values, factor in ((first, 4), (second, 4), (third, 7)):
            close(values, factor * plain, 1e-12)

    def test_a_model_that_returns_no_tensor_is_refused(self, model: Any) -> None:
        def call(built: Any, inputs: Any) -> None:
            built(inputs["input_ids"])

        with pytest.raises(embgrad.errors.OutputError, match="in which there is no tensor"):
            embgrad.gradients(model("mean"), {"input_ids": IDS}, embgrad.Sum(), call=call)

    def test_a_text_longer_than_the_positions_is_refused(self, model: Any) -> None:
        ids = np.full((1, VOCAB + 1), 3)
        with pytest.raises(
            embgrad.errors.BatchError, match="example 0 has 41 tokens, and the model takes 40 positions at most"
        ):
            embgrad.gradients(model("positional"), ids, embgrad.Sum())

    @pytest.mark.filterwarnings("ignore:the model cannot take the mask")
    def test_padding_on_the_left_of_a_model_that_counts_positions_is_a_warning(self, model: Any) -> None:
        batch = {"input_ids": IDS, "attention_mask": MASK[:, ::-1]}
        with pytest.warns(embgrad.EmbgradWarning, match="padded on the left, and the model counts the padding"):
            embgrad.gradients(model("positional"), batch, embgrad.Sum())


@needs("parameters")
class PartChecks:
    """The checks of models in parts that a backend with the ability "parameters" must pass."""

    def test_parameters_of_parts_are_numbered(self, model: Any) -> None:
        parts, batch = [model("mean"), model("hidden")], example_batch()
        alone = embgrad.tables.parameter_gradients(parts[1], batch, OBJECTIVE)
        found = embgrad.tables.parameter_gradients(
            parts, batch, OBJECTIVE, call=lambda p, inputs: p[1](inputs["input_ids"])
        )
        assert [name for name in found if not name.startswith("0.")] == [f"1.{name}" for name in alone]
        for name, value in alone.items():
            np.testing.assert_array_equal(found[f"1.{name}"], value)
        assert not any(np.any(value) for name, value in found.items() if name.startswith("0."))
