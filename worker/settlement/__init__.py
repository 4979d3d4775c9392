"""Takes requests off this worker: finished, handed over, or given up as dead letters."""
