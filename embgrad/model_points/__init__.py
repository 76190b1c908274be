"""The points of a forward pass: what they are, how they are recorded, and how they are named."""
