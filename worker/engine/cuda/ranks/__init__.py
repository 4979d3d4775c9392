"""Several GPUs that share a model, with a process each."""
