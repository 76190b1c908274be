"""Reports of results: a self-contained HTML page, and the HTML that notebooks show."""

from __future__ import annotations

from embgrad.report.page import render_page, write_page

__all__ = ["render_page", "write_page"]
