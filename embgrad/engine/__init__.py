"""The calls: from a model, a batch and an objective to results."""
