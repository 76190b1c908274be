"""The fixtures of the commands, which run in a temporary folder."""

from tests.unit.cli.conftest import command, directory

__all__ = ["command", "directory"]
