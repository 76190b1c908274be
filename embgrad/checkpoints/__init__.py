"""A checkpoint folder as a BERT in each framework."""
