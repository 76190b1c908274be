"""One model of the zoo: what embgrad returns against gradients by hand, and the model's state before and after."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np

import embgrad
from embgrad.testing.snapshot import different
from tests.zoo.hand import DECODER, WORD, Case, Hand, Pulled, Unchecked
from tests.zoo.page import ROLES

__all__ = ["TOLERANCE", "Row", "examine", "judged"]

#: The largest difference, relative in the L2 norm, of what was computed in the same order, and of what was computed in larger
#: batches, in which a framework rounds otherwise.
TOLERANCE: Final[Mapping[str, float]] = {"word": 1e-5, "layer.-1": 1e-5, "attribute": 1e-4, "attribute_tokens": 1e-4}

#: Arrays of embgrad's, the same by hand, and arrays of whose size a difference is a share.
Pair = tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]

#: Verdicts, the worst last.
_ORDER: Final = ("equal", "unchecked", "wrong")

#: Steps of integrated gradients.
STEPS: Final = 3


@dataclass
class Row:
    """What was found of a model.

    Attributes:
        name: the class.
        family: the architecture, which several classes share.
        framework: what the model runs on.
        unchecked: why nothing could be compared; empty where something was.
        checks: by the names of `CHECKS` {"status": "equal", "refused", "wrong", "raw" or "unchecked"} with the relative
            "difference", or the "message" of the error.
        changed: what the calls did not leave as it was.
        roles: the points by role.
        layer: the last layer as found by hand, where embgrad names another; else empty.
    """

    name: str
    family: str
    framework: str
    unchecked: str = ""
    checks: dict[str, dict[str, Any]] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)
    roles: dict[str, str] = field(default_factory=dict)
    layer: str = ""

    def plain(self) -> dict[str, Any]:
        """Return it as JSON holds it, without what is empty."""
        return {name: value for name, value in asdict(self).items() if value not in ("", {}, [])}


def examine(row: Row, case: Case, hand: Hand) -> Row:
    """Compare a model in each call, and fill in its row."""
    try:
        outputs, again = hand.outputs(case), hand.outputs(case)
    except Exception as error:  # the model's own, without any part of embgrad
        row.unchecked = f"the model does not run: {_line(error)}"
        return row
    if any(not np.array_equal(value, again[name], equal_nan=True) for name, value in outputs.items()):
        row.unchecked = "the model draws random numbers in each pass"
        return row
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _compare(row, case, hand, outputs)
    return row


class _Raw(Exception):
    """An error of a call that is not embgrad's; the cause is the error."""


def _watched(row: Row, case: Case, hand: Hand, name: str, call: Callable[[], Any]) -> Any:
    """Return what a call returns, and note in the row what it did not leave as it was."""
    before = hand.state(case.model)
    try:
        return call()
    except embgrad.EmbgradError:
        raise
    except Exception as error:  # whatever a call may raise is a finding
        raise _Raw from error
    finally:
        differences = different("", before, hand.state(case.model))
        row.changed += [f"{name} {path}: {text}" for path, text in differences.items()]


def _compare(row: Row, case: Case, hand: Hand, outputs: Mapping[str, np.ndarray]) -> None:
    try:
        output, direction, put = _projected(case, outputs)
    except Unchecked as reason:
        row.unchecked = str(reason)
        return
    objective = embgrad.Projection(direction, output=output or None)

    def called(name: str, function: Callable[..., Any], *values: Any, **options: Any) -> Any:
        return _watched(row, case, hand, name, lambda: function(case.model, case.batch, *values, **options))

    def word() -> Pair:
        result = called("word", embgrad.gradients, objective)
        by_hand = hand.pull(case, output, lambda value: [put])
        return _pair(result, by_hand, WORD)

    def layer() -> Pair:
        result = called("layer.-1", embgrad.gradients, objective, at="layer.-1")
        path = str(result.provenance["path"]).replace(":output", "")
        by_hand = hand.pull(case, output, lambda value: [put], [path])
        if not _same_layer(by_hand.last_layer, path.partition("#")[0]):
            row.layer = f"{by_hand.last_layer or 'none'}, not {path}"
        return _pair(result, by_hand, path)

    def attribute() -> Pair:
        method = embgrad.methods.IntegratedGradients(steps=STEPS, baseline="zero")
        result = called("attribute", embgrad.attribute, objective, method)
        scores, sizes = _integrated(case, hand, output, put)
        return [result.scores], [scores], [sizes]

    def tokens() -> Pair:
        result = called("attribute_tokens", embgrad.attribute_tokens)
        return _token_scores(case, hand, output, result)

    row.checks["word"] = _checked("word", word)
    row.roles = _roles(called)
    row.checks["layer.-1"] = _checked("layer.-1", layer)
    row.checks["attribute"] = _checked("attribute", attribute)
    if case.labels is not None and outputs[output].ndim == 3:
        row.checks["attribute_tokens"] = _checked("attribute_tokens", tokens)


def _same_layer(by_hand: str | None, path: str) -> bool:
    """Return whether two paths are of one layer: Keras cuts paths at the beginning."""
    own, other = ((text or "").replace(".", "/") for text in (by_hand, path))
    return own == other or (own != "" and other.endswith(f"/{own}"))


def _projected(case: Case, outputs: Mapping[str, np.ndarray]) -> tuple[str, np.ndarray, np.ndarray]:
    """Return the name of the output that is projected on a vector, the vector, and the cotangent that this means."""
    ids = case.batch[case.ids]
    vectors = {
        name: value
        for name, value in outputs.items()
        # The similarities of each text and each image join the examples.
        if value.ndim in (2, 3) and len(value) == len(ids) and value.size and not name.startswith("logits_per_")
    }
    if not vectors:
        raise Unchecked(
            f"no output has a vector an example: {[(name, value.shape) for name, value in outputs.items()]}"
        )
    name, value = next(iter(vectors.items()))
    if not np.isfinite(value).all():
        raise Unchecked(f"the output {name!r} is not finite")
    lengths = {rows.shape[1] for rows in case.looked_up.values()}
    per_position = value.ndim == 3 and value.shape[1] in lengths
    entries = value.shape[-1:] if per_position else value.shape[1:]  # of what has other axes, all are one vector
    direction = np.random.default_rng(7).normal(size=entries)
    put = np.broadcast_to(direction, value.shape)
    if value.shape[1] == ids.shape[1]:  # padding does not count
        put = put * case.real.reshape(*ids.shape, *[1] * (value.ndim - 2))
    return name, direction.ravel(), put


def _pair(result: embgrad.results.EmbeddingGradients, by_hand: Pulled, point: str) -> Pair:
    expected = [by_hand.gradients[0][point], by_hand.values[point]]
    if result.values.shape[:2] == expected[0].shape[1::-1]:  # the model has positions first
        expected = [array.swapaxes(0, 1) for array in expected]
    return [result.values, result.activations], expected, expected


def _integrated(case: Case, hand: Hand, output: str, put: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return integrated gradients from zeros at real positions, one pass for each step of the Gauss-Legendre rule.

    With them the sizes of the products that are summed to each score: where they cancel, as after a norm, rounding is left.
    """
    nodes, weights = np.polynomial.legendre.leggauss(STEPS)
    scores, sizes = (np.zeros(case.batch[case.ids].shape) for _ in range(2))
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        pulled = hand.pull(case, output, lambda value: [put], scale=np.where(case.real, node, 1.0))
        products = pulled.gradients[0][WORD] * pulled.values[WORD].astype(np.float64) / node
        scores += weight * products.sum(-1)
        sizes += weight * np.abs(products).sum(-1)
    return scores * case.real, sizes * case.real


def _token_scores(case: Case, hand: Hand, output: str, result: Any) -> Pair:
    """Return the scores of `attribute_tokens`, and those by hand: the gradient of log p(token | tokens before) times the rows."""
    assert case.labels is not None
    labels = case.batch[case.labels]
    real = case.real if case.decoder is None else np.ones_like(labels, bool)

    def respond(logits: np.ndarray) -> list[np.ndarray]:
        exponentials = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
        chances = exponentials / exponentials.sum(-1, keepdims=True)
        responses = []
        for position in range(1, labels.shape[1]):
            put = np.zeros(logits.shape)
            put[:, position - 1] = np.eye(logits.shape[-1])[labels[:, position]] - chances[:, position - 1]
            responses.append(put * real[:, position, None, None])
        return responses

    points = [WORD] if case.decoder is None else [WORD, DECODER]
    pulled = hand.pull(case, output, respond, points)
    products = {
        point: np.stack([gradients[point] * pulled.values[point] for gradients in pulled.gradients], 1)
        for point in points
    }
    products[WORD] = products[WORD] * case.real[:, None, :, None]  # the score of padding is zero
    found = {WORD: result.scores, DECODER: result.decoder_scores}
    return (
        [np.nan_to_num(found[point]) * real[:, 1:, None] for point in points],
        [products[point].sum(-1) for point in points],
        [np.abs(products[point]).sum(-1) for point in points],
    )


def _checked(name: str, compare: Callable[[], Pair]) -> dict[str, Any]:
    try:
        values, expected, sizes = compare()
    except Unchecked as reason:
        return {"status": "unchecked", "message": str(reason)}
    except embgrad.EmbgradError as error:
        return {"status": "refused", "message": f"{type(error).__name__}: {_first(str(error))}"}
    except _Raw as error:
        return {"status": "raw", "message": _line(error.__cause__)}
    except Exception as error:  # the framework's own, in the pass by hand
        return {"status": "unchecked", "message": f"by hand: {_line(error)}"}
    verdicts = [judged(name, *pair) for pair in zip(values, expected, sizes, strict=True)]
    return max(verdicts, key=lambda verdict: (_ORDER.index(verdict["status"]), verdict.get("difference", 0.0)))


def judged(name: str, values: np.ndarray, expected: np.ndarray, sizes: np.ndarray) -> dict[str, Any]:
    """Return the verdict on numbers, given those by hand, and the sizes of what they are sums of."""
    values, expected = np.asarray(values, np.float64), np.asarray(expected, np.float64)
    if values.shape != expected.shape:
        return {"status": "wrong", "message": f"shape {values.shape}, by hand {expected.shape}"}
    if not np.isfinite(expected).all():
        return {"status": "unchecked", "message": "the gradient by hand is not finite"}
    size = np.linalg.norm(sizes)
    if size == 0:
        same = not np.any(values)
        return {"status": "unchecked" if same else "wrong", "message": "the gradient by hand is zero"}
    difference = float(np.linalg.norm(values - expected) / size)
    return {"status": "equal" if difference <= TOLERANCE[name] else "wrong", "difference": float(f"{difference:.1e}")}


def _roles(called: Callable[..., Any]) -> dict[str, str]:
    """Return the names of the points that have roles; none where the listing is refused."""
    try:
        points = called("points", embgrad.points)
    except embgrad.EmbgradError:
        return {}
    return {role: point.name for point in points for role in point.roles if role in ROLES}


def _first(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else ""


def _line(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {_first(str(error))}"
