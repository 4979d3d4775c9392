"""What tools write about the quantisation of a checkpoint: one reader each, to formats."""
