"""Checks of the installation: the versions that embgrad is tested with, and the import of each framework."""
