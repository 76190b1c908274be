"""Steps of the bisection: read both models at their points, match the points, narrow down the difference, and describe it."""
