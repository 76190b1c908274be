"""Results for people: one HTML page that needs nothing else, and what notebooks show."""

from __future__ import annotations

from embgrad.report.page import render_page, write_page

__all__ = ["render_page", "write_page"]
