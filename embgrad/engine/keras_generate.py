"""The continuation of prompts by keras-hub's language models, whose method `generate` takes one dict of padded ids."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from embgrad.backend.protocol import BoundModel
from embgrad.common.arrays import to_numpy, whole_numbers
from embgrad.engine.encoder_decoders import takes_decoder
from embgrad.errors import EmbgradError, UnsupportedError, brief, quote
from embgrad.inputs.alignment import align
from embgrad.inputs.batch import CONVENTIONS, TokenBatch
from embgrad.inputs.conventions import as_batch
from embgrad.inputs.decoder import IDS, NAMES, decoder_of, with_decoder_ids
from embgrad.keras.inputs import is_keras

__all__ = ["generate_by_keras_hub", "is_keras_hub", "prompts_of_texts"]

#: keras-hub's own options that a continuation takes.
OPTIONS: Final = ("max_length", "stop_token_ids")

#: Its names of the decoder's ids and mask.
KERAS_HUB: Final = NAMES[1]


def is_keras_hub(model: Any) -> bool:
    """Return whether a model is one of keras-hub's language models, which compile a function that generates."""
    return is_keras(model) and all(
        hasattr(model, name) for name in ("make_generate_function", "generate_step", "sampler")
    )


def prompts_of_texts(model: Any, texts: Any) -> TokenBatch | None:
    """Return texts as the preprocessor of a model of keras-hub makes prompts of them; None where these are no such texts.

    In an encoder-decoder they are the encoder's texts, and the decoder has the ids with which it starts.
    """
    preprocess = getattr(getattr(model, "preprocessor", None), "generate_preprocess", None)
    rows = [texts] if isinstance(texts, str) else texts
    is_list = isinstance(rows, (list, tuple)) and bool(rows) and all(isinstance(row, str) for row in rows)
    if preprocess is None or not is_list or not is_keras_hub(model):
        return None
    made = {name: to_numpy(value).astype(np.int64) for name, value in preprocess(list(rows)).items()}
    for ids, mask in (CONVENTIONS["keras_hub"][:2], CONVENTIONS["keras_hub_seq2seq"][:2], KERAS_HUB):
        if ids in made and mask in made:  # padded to the preprocessor's length, in place of the longest text's
            longest = max(1, int(made[mask].sum(1).max()))
            made |= {name: made[name][:, :longest] for name in (ids, mask)}
    return as_batch(made)


def generate_by_keras_hub(bound: BoundModel, batch: TokenBatch, options: Any) -> tuple[TokenBatch, int]:
    """Return the batch with the tokens that a model of keras-hub generates, and the position of the first of these.

    Prompts of other lengths end at the same position, with padding before them. The model keeps its sampler, the state of its
    random numbers, and its compiled function.

    Args:
        batch: the prompts; in an encoder-decoder the encoder's ids, and the ids with which the decoder starts, if they are not
            those of the model's preprocessor.
        options: the number of new tokens, for greedy search, or keras-hub's options, for the sampler of the model.

    Raises:
        EmbgradError: the options are not keras-hub's.
        UnsupportedError: it is not known with which ids the decoder starts, or nothing was generated.
    """
    model = bound.model
    wrong = [name for name in options if name not in OPTIONS] if isinstance(options, Mapping) else []
    if wrong:
        raise EmbgradError(
            f"generate has the option {brief(wrong[0])}: expected {quote(OPTIONS)} for a model of keras-hub, whose sampler is "
            "set by model.compile(sampler=...)"
        )
    prompts = _prompts(model, batch)
    lengths = prompts.lengths()
    counts = _counts(model, options, lengths, prompts.shape[1])
    stops = _stops(model, options)
    width = int((lengths + counts).max())
    fill = next(number for number in range(len(stops or ()) + 1) if number not in (stops or ()))
    ids = np.full((len(batch), width), fill, np.int32)
    kept = min(width, prompts.shape[1])
    ids[:, :kept] = np.where(prompts.real, prompts.ids, fill)[:, :kept]
    real = np.arange(width) < lengths[:, None]
    whole, is_kept = _generate(bound, batch, ids, real, stops, greedy=not isinstance(options, Mapping))
    if whole is None or whole.shape != ids.shape or not np.array_equal(whole[real], ids[real]):
        raise UnsupportedError(
            f"{type(model).__name__} generated {'no ids' if whole is None else f'ids of shape {whole.shape}'} for prompts that "
            f"are padded to {ids.shape}: expected ids of that shape, which begin with the prompts'. Give the prompts with their "
            "continuations as the batch, and the positions of the continuations as targets"
        )
    longest, most = int(lengths.max()), int(counts.max())
    is_new = np.arange(most) < counts[:, None]
    columns = np.arange(-longest, most) + lengths[:, None]
    is_real = np.concatenate([columns[:, :longest] >= 0, is_new], 1)
    columns = np.where(is_real, columns, 0)
    is_real &= np.take_along_axis(is_kept | real, columns, 1)
    ids = np.where(is_real, np.take_along_axis(whole, columns, 1), fill).astype(np.int64)
    mask = is_real.astype(np.int64)
    if takes_decoder(model):
        return with_decoder_ids(batch, ids, mask), longest
    convention = "keras_hub" if batch.convention == "ids" else batch.convention
    types = prompts.types
    if types is not None:  # new tokens have the type of the prompt's last
        types = np.take_along_axis(types, np.minimum(columns, lengths[:, None] - 1), 1)
    return TokenBatch(ids, mask, types, convention=convention, mask_is_bool=batch.mask_is_bool), longest


def _prompts(model: Any, batch: TokenBatch) -> TokenBatch:
    """Return the ids that are continued, padded on the right: in an encoder-decoder those with which the decoder starts.

    Raises:
        UnsupportedError: these are not known.
    """
    if not takes_decoder(model):
        return align(batch.replace(extras={}))[0]
    start = decoder_of(batch)
    if start is None:
        preprocess = getattr(getattr(model, "preprocessor", None), "generate_preprocess", None)
        if preprocess is None:
            raise UnsupportedError(
                f"{type(model).__name__} has no preprocessor, so that the id with which its decoder starts is not known: give it "
                f"for each example as {IDS!r} of the batch, of shape ({len(batch)}, 1)"
            )
        empty = preprocess({"encoder_text": [""], "decoder_text": [""]})
        ids, mask = (to_numpy(empty[name]).astype(np.int64) for name in KERAS_HUB)
        start = TokenBatch(ids.repeat(len(batch), 0), mask.repeat(len(batch), 0))
    return align(start)[0]


def _counts(model: Any, options: Any, lengths: np.ndarray, width: int) -> np.ndarray:
    """Return the number of new tokens of each example.

    Raises:
        EmbgradError: there is none.
    """
    if not isinstance(options, Mapping):
        return np.full(len(lengths), int(options))
    preprocessor = getattr(model, "preprocessor", None)
    names = ("decoder_sequence_length", "sequence_length")
    default = next((length for name in names if type(length := getattr(preprocessor, name, None)) is int), width)
    most = options.get("max_length") or default
    if isinstance(most, bool) or not isinstance(most, (int, np.integer)) or most <= lengths.min():
        raise EmbgradError(
            f"generate leaves {brief(most)} tokens in all, and the shortest prompt has {lengths.min()}: expected a larger "
            "'max_length', which counts the prompt, or the number of new tokens, generate=3"
        )
    return np.asarray(np.maximum(int(most) - lengths, 0))


def _stops(model: Any, options: Any) -> tuple[int, ...] | None:
    """Return the ids that end a text; None where generation goes on to the maximal length."""
    given = options.get("stop_token_ids", "auto") if isinstance(options, Mapping) else "auto"
    if isinstance(given, str) and given == "auto":
        tokenizer = getattr(getattr(model, "preprocessor", None), "tokenizer", None)
        ends = [getattr(tokenizer, name, None) for name in ("end_token_id", "end_token2_id")]
        known = tuple(int(end) for end in ends if end is not None)
        return known or None
    if given is None:
        return None
    try:
        ids = whole_numbers(to_numpy(given))
    except ValueError:
        ids = None
    if ids is None or ids.ndim != 1:
        raise EmbgradError(f"stop_token_ids is {brief(given)}: expected ids, such as (2, 3), None, or 'auto'")
    return tuple(ids.tolist()) or None


def _generate(
    bound: BoundModel,
    batch: TokenBatch,
    ids: np.ndarray,
    real: np.ndarray,
    stops: tuple[int, ...] | None,
    *,
    greedy: bool,
) -> tuple[np.ndarray | None, np.ndarray]:
    """Return the ids that the model's compiled function returns, and which of them belong to the texts.

    Args:
        ids: the ids to continue, padded to the maximal length.
        real: which of them are given.
        stops: the ids that end a text.
        greedy: whether to search greedily, whatever the model's sampler.
    """
    keras = sys.modules["keras"]
    inputs: dict[str, np.ndarray] = {"token_ids": ids, "padding_mask": real}
    if takes_decoder(bound.model):
        encoder = (batch.ids.astype(np.int32), batch.real)
        inputs = dict(zip((*CONVENTIONS["keras_hub_seq2seq"][:2], *KERAS_HUB), (*encoder, ids, real), strict=True))
    *_, name, mask = inputs
    with _leave_as_found(bound, greedy=greedy) as model:
        function = model.make_generate_function()
        try:
            returned = function(
                {key: keras.ops.convert_to_tensor(value) for key, value in inputs.items()}, stop_token_ids=stops
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UnsupportedError(
                f"the generation of {type(model).__name__} raised {type(error).__name__} for {quote(inputs)}: {error}. Give the "
                "prompts with their continuations as the batch, and the positions of the continuations as targets"
            ) from error
        return whole_numbers(np.array(keras.ops.convert_to_numpy(returned[name]))), np.array(
            keras.ops.convert_to_numpy(returned[mask]), bool
        )


@contextlib.contextmanager
def _leave_as_found(bound: BoundModel, *, greedy: bool) -> Iterator[Any]:
    """Yield the model, with a greedy sampler if asked for; its sampler, random numbers and compiled function stay its own."""
    model = bound.model
    with bound.backend.alone(model):
        sampler, function = model.sampler, model.generate_function
        keras = sys.modules["keras"]
        states = [(variable, np.array(keras.ops.convert_to_numpy(variable))) for variable in sampler.variables]
        try:
            if greedy:
                base = next(cls for cls in type(sampler).__mro__ if cls.__qualname__ == "Sampler")
                model.sampler = sys.modules[base.__module__.partition(".")[0]].samplers.GreedySampler()
                model.generate_function = None
            yield model
        finally:
            model.sampler, model.generate_function = sampler, function
            for variable, value in states:
                variable.assign(value)
