"""Objectives: values and cotangents of a model's outputs, in NumPy."""
