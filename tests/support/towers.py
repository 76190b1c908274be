"""What each framework's tests expect of a model of two towers: the roles are the text's, whatever the image."""

from __future__ import annotations

from typing import Any

import numpy as np

import embgrad

__all__ = ["DIM", "POSITIONS", "expect_roles_of_text", "inputs"]

DIM, POSITIONS = 4, 5


def inputs(patches: int) -> dict[str, np.ndarray]:
    """Return ids, and features of an image of shape (example, patch, dim)."""
    random = np.random.default_rng(2)
    ids = random.permutation(np.arange(1, 16)).reshape(3, POSITIONS)
    return {"input_ids": ids, "features": random.normal(size=(3, patches, DIM)).astype(np.float32)}


def expect_roles_of_text(model: Any, tower: str, **options: Any) -> None:
    """Expect that the layers are those below a path, for images with as many positions as the text and with others.

    Args:
        model: has two blocks in the text's tower, takes `input_ids` and `features`, and returns numbers (example, dim).
        tower: the path that only the text's modules have.
        options: further arguments of `embgrad.gradients`.
    """
    objective = embgrad.Projection(np.arange(1.0, DIM + 1))
    for patches in (POSITIONS, 3, 8):
        batch = inputs(patches)
        names = ["layer.0", "layer.-1", "embeddings"]
        by_role = embgrad.gradients(model, batch, objective, at=names, **options)
        paths = [by_role[name].provenance["path"] for name in names]
        assert all(path.startswith(tower) for path in paths), paths
        assert len(set(paths)) == 3
        by_path = embgrad.gradients(model, batch, objective, at=paths, **options)
        for name, path in zip(names, paths, strict=True):
            assert by_role[name].shape == (3, POSITIONS, DIM)
            np.testing.assert_array_equal(by_role[name].values, by_path[path].values)
            assert by_role[name].values.any()
        listed = {role: point.key for point in embgrad.points(model, batch) for role in point.roles}
        assert [listed[name] for name in names] == paths
        assert "layer.2" not in listed
