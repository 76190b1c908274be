"""The report page: results and their comparisons as one self-contained HTML file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

from embgrad.common.files import write_whole
from embgrad.comparison.verdicts import Verdict, verdict
from embgrad.display.colours import token_css
from embgrad.display.figures import key, picture, rows_html
from embgrad.display.html import Html, page, tag
from embgrad.report.arguments import (
    Result,
    Shown,
    are_attributions,
    comparisons_by_point,
    of_own_page,
    points_of,
    results_by_label,
)
from embgrad.report.sentences import Example, sentences
from embgrad.results.attribution import Attribution
from embgrad.results.gradient_display import source_of
from embgrad.results.gradients import EmbeddingGradients
from embgrad.version import __version__

__all__ = ["MOST_ENTRY", "render_page", "write_page"]

TITLE: Final = "Embedding gradients"

#: The title of a page of attributions.
TITLE_OF_ATTRIBUTIONS: Final = "Attributions"

#: The largest number of letters in an entry of the provenance.
MOST_ENTRY: Final = 400

#: How to read the sentences of gradients and of attributions, and of both.
OF_GRADIENTS: Final = (
    ", token by token. Magnitude is the gradient’s length; signed is its inner product with the value there. Each row of panels "
    "has one scale, the same for every result, so that colours can be compared."
)
OF_ATTRIBUTIONS: Final = (
    " to each example’s objective, token by token: orange above zero, blue below, purple where scores have no sign. Each method "
    "has its own scale, since the methods’ figures do not compare; results of one method share one."
)
OF_TOKENS: Final = (
    " The bar under a token shows the same as its colour. A dashed outline marks special tokens, which do not set the scale. To "
    "see a token’s figures, point at it, tap it, or move to it with Tab and the arrow keys."
)


@dataclass(frozen=True)
class Origin:
    """One result's provenance.

    Attributes:
        brief: the framework and model in one line.
        lines: all entries, by name.
    """

    label: str
    brief: str
    lines: tuple[tuple[str, str], ...]


def write_page(
    path: str | Path,
    results: Shown | Mapping[str, Shown | Mapping[str, Shown]],
    *,
    title: str | None = None,
) -> None:
    """Write one self-contained HTML file: sentences with tokens coloured by saliency, and the findings of comparisons.

    The file holds no script and loads nothing from other hosts. It works from disk, on phones, in dark mode and in print. It is
    written atomically. Its numbers are those of `EmbeddingGradients.saliency` and `embgrad.compare`.

    Args:
        path: the path of the file.
        results: a mapping of labels to results, or to mappings of points to results; the others are shown beside the first, and
            compared with it, attributions where they are by the same method. A single result is accepted too. All are gradients,
            or all are attributions, such as the `Attributions` of several methods; colours then show the scores, on one scale for
            each method. A result of `embgrad.attribute_tokens` or `embgrad.search` has a page by itself, that of its `to_html`.
        title: the title of the page; None for "Embedding gradients" or "Attributions". All points that the results have in common
            are shown, with sentences at "word", or else at the first.

    Raises:
        EmbgradError: the results are of other types.
        PointError: the results have no point in common.
        BatchError: the results cannot be compared, since they hold different texts.
        OSError: the file cannot be written.
    """
    page = render_page(results, title=title)
    # Lone surrogates, which UTF-8 cannot hold, have been spelled out before.
    write_whole(path, page.encode("utf-8"))


def render_page(
    results: Shown | Mapping[str, Shown | Mapping[str, Shown]],
    *,
    title: str | None = None,
) -> str:
    """Return the page that `write_page` writes, as text; the arguments and errors are the same."""
    if (alone := of_own_page(results)) is not None:
        return alone.to_html()
    by_label = results_by_label(results)
    of_attributions = are_attributions(by_label)
    points = points_of(by_label)
    compared = comparisons_by_point(by_label, points)
    first, point = next(iter(by_label)), points[0]
    positions = {label: by_point[point].per_position for label, by_point in compared.items() if point in by_point}
    verdicts = [verdict(label, first, by_point, point) for label, by_point in compared.items()]
    bounds = sorted({comparison.tolerance for by_point in compared.values() for comparison in by_point.values()})
    examples, notes = sentences(
        {label: by_point[point] for label, by_point in by_label.items()},
        {label: figures.relative_l2 for label, figures in positions.items() if figures is not None},
    )
    origins = [_origin(label, by_point[point], list(by_point)) for label, by_point in by_label.items()]
    heading = title or (TITLE_OF_ATTRIBUTIONS if of_attributions else TITLE)
    briefs = [
        (" · " if index else "", tag("strong", origin.label), f" {origin.brief}")
        for index, origin in enumerate(origins)
    ]
    sheet = resources.files("embgrad.report").joinpath("page.css").read_text(encoding="utf-8")
    return page(
        heading,
        tag("a", "Skip to the sentences", class_="skip", href="#sentences"),
        tag("header", tag("h1", heading), tag("p", briefs)),
        tag(
            "main",
            _findings_html(verdicts, first, bounds, of_attributions) if verdicts else None,
            _sentences_html(examples, notes, point, of_attributions),
        ),
        _footer_html(origins),
        style=sheet + token_css(),
        inline=False,
    )


def _findings_html(
    verdicts: Sequence[Verdict], first: str, bounds: Sequence[float], of_attributions: bool
) -> list[Html]:
    drawn = picture({outcome.label: outcome.points for outcome in verdicts}, bounds, first, inline=False)
    figure = None
    if drawn is not None:
        what = "scores" if of_attributions else "gradient"
        keys = [(" ", key(number, outcome.label)) for number, outcome in enumerate(verdicts)]
        caption = tag("figcaption", f"Relative L2 of the {what} against {first}, by point.", keys)
        figure = tag("figure", drawn, caption)
    return [
        tag(
            "section",
            tag("h2", "Findings", id="findings"),
            [_verdict_html(outcome, first) for outcome in verdicts],
            aria_labelledby="findings",
        ),
        tag(
            "section",
            tag("h2", "Figures", id="figures"),
            tag("div", figure, [_tables_html(outcome, first) for outcome in verdicts], class_="figures"),
            aria_labelledby="figures",
        ),
    ]


def _verdict_html(outcome: Verdict, first: str) -> Html:
    sign = tag("span", "✓" if outcome.agrees else "✗", aria_hidden="true")
    content = [tag("p", sign, f" {outcome.text} (tolerance {outcome.tolerance})", class_="said")]
    if outcome.findings:
        content.append(tag("ul", [tag("li", text) for text in outcome.findings]))
    if outcome.advice:
        content.append(tag("p", outcome.advice))
    if outcome.notes:
        content.append(tag("ul", [tag("li", text) for text in outcome.notes]))
    if len(content) > 1:
        sides = f"a is {first}, {outcome.sides[0]}; b is {outcome.label}, {outcome.sides[1]}."
        content.append(tag("p", sides, class_="small"))
    return tag("div", content, class_="verdict good" if outcome.agrees else "verdict bad")


def _tables_html(outcome: Verdict, first: str) -> Html:
    name = f"{outcome.label} against {first}"
    table = rows_html("point", outcome.points, f"{name}, tolerance {outcome.tolerance}", inline=False)
    if len(outcome.examples) < 2:
        return tag("div", table)
    at = f", at {outcome.point}" if len(outcome.points) > 1 else ""
    more = f" ({outcome.unlisted} more examples not listed)" if outcome.unlisted else ""
    examples = rows_html("example", outcome.examples, f"by example{at}{more}", inline=False)
    return tag("div", table, tag("details", tag("summary", f"{name}, by example"), examples))


def _sentences_html(examples: Sequence[Example], notes: Sequence[str], point: str, of_attributions: bool) -> Html:
    start, end = (
        ("The contributions of the positions", OF_ATTRIBUTIONS) if of_attributions else ("The gradient", OF_GRADIENTS)
    )
    return tag(
        "section",
        tag("h2", "Sentences", id="sentences"),
        tag("p", f"{start} at ", tag("strong", point), end, OF_TOKENS),
        [tag("p", note) for note in notes],
        [example.html() for example in examples],
        aria_labelledby="sentences",
    )


def _footer_html(origins: Sequence[Origin]) -> Html:
    tables = [
        tag(
            "details",
            tag("summary", f"{origin.label}: {origin.brief}"),
            tag(
                "table",
                tag("caption", f"Provenance of {origin.label}"),
                tag("tbody", [tag("tr", tag("th", name, scope="row"), tag("td", text)) for name, text in origin.lines]),
                class_="plain",
            ),
        )
        for origin in origins
    ]
    return tag(
        "footer", tag("h2", "Provenance"), tables, tag("p", f"Written by embgrad {__version__}.", class_="small")
    )


def _origin(label: str, result: Result, points: Sequence[str]) -> Origin:
    """Return the provenance of a result, one of several at these points."""
    source = result.provenance
    shape = " × ".join(map(str, result.shape))
    if isinstance(result, Attribution):
        lines = {"attribution": shape, **dict(_lines(source))}
        if result.delta is not None:
            lines["largest error of completeness"] = f"{abs(result.delta).max():.2e}"
    else:
        lines = {
            "gradient": f"{shape}, {result.values.dtype}",
            **dict(_lines(source)),
            "largest at padding": "no mask" if result.mask is None else f"{result.pad_leak:.2e}",
        }
    if len(points) > 1:
        lines["points"] = ", ".join(points)
    if isinstance(result, EmbeddingGradients) and result.certificate is not None:
        slopes = result.certificate.slopes
        held = sum(slope.holds for slope in slopes)
        lines["certificate"] = f"{held} of {len(slopes)} slopes by finite differences hold"
    return Origin(
        label,
        source_of(source),
        tuple((name, text[:MOST_ENTRY] + ("…" if len(text) > MOST_ENTRY else "")) for name, text in lines.items()),
    )


def _lines(source: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield the entries, with nested mappings flattened."""
    for name, value in source.items():
        if isinstance(value, Mapping):
            yield from _lines(value, f"{above}{name}, ")
        elif isinstance(value, str):
            yield f"{above}{name}".replace("_", " "), value
        else:
            yield f"{above}{name}".replace("_", " "), json.dumps(value, ensure_ascii=False, default=repr)
