"""Checks of the installation: the versions that embgrad is tested with, and a test gradient for each framework."""
