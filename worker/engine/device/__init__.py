"""The machine that a model runs on: its memory, its cores, and the seam to a GPU."""
