"""The first minutes of somebody who has a checkout, a shell, and nothing else."""
