"""The page that shows results and their comparisons side by side, as one HTML file."""

from __future__ import annotations

from embgrad.report.page import render_page, write_page

__all__ = ["render_page", "write_page"]
