"""Reports on ports: whether a port agrees with its reference, and if not, at which points and why."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

from embgrad.common.files import check_path, write_whole
from embgrad.display.terminal import print_parts
from embgrad.results.file_format import Saved
from embgrad.results.port_display import parts, report_cell, report_page, text, verdict
from embgrad.results.port_records import PortFields

__all__ = ["PortReport"]


@dataclass(frozen=True, eq=False, repr=False)
class PortReport(PortFields, Saved):
    """The verdict on a port, with the points at which it differs, and the causes.

    Attributes:
        agrees: whether the port computes what the reference computes, up to rounding.
        first: the name of the first point at which it does not; None if it agrees everywhere.
        causes: the causes that explain the difference, those with the largest effect first; empty if it agrees, or if none does.
        unexplained: the names of the points at which the port differs without a known cause.
        settings: the settings that the two configurations declare in different ways.
        weights: the weights of both models by their partners.
        points: the figures at every point that both have, in the order of the reference's pass.
        explained: the share of the squared difference of the models' outputs that all causes together explain; None if it was not
            measured.
        labels: descriptions of the reference and the port.
        floor: the dtype whose rounding errors count as agreement.
        notes: what could not be compared, and why.
        seconds: the time that each step took.
    """

    @property
    def verdict(self) -> str:
        """The outcome in one line."""
        return verdict(self)

    def __repr__(self) -> str:
        return text(self)

    def show(self) -> None:
        """Print the verdict, the causes, the settings and weights that differ, and a table with a line for each layer.

        Colours need the package Rich and a terminal that has them, and respect the variable `NO_COLOR`.
        """
        print_parts(lambda _: parts(self))

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return a page of HTML: the verdict, the differences over the depth of the model, causes, settings and weights.

        The page needs nothing else, has no scripts, and escapes the names.

        Args:
            path: the file to write it to, in UTF-8, as a whole or not at all; None to return it alone.

        Raises:
            EmbgradError: `path` is not a path.
            OSError: the file cannot be written.
        """
        page = report_page(self)
        if path is not None:
            write_whole(check_path(path), page.encode("utf-8"))
        return page

    def _repr_html_(self) -> str:
        """Return the HTML that notebooks show."""
        return report_cell(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything in a form that JSON can hold, apart from numbers that are not finite."""
        fields = asdict(self)
        return {"agrees": fields.pop("agrees"), "verdict": self.verdict, **fields}
