"""Hypotheses about the cause of a difference at a site, each a class in a module of its own."""
