"""Finds where two models part: reads both at their points, pairs what belongs together, and narrows down."""
