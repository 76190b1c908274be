"""Loading of a checkpoint folder as a BERT in each framework."""
