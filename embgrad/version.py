"""The version of embgrad."""

__version__ = "0.1.0"
