"""An engine without a model, for tests and benchmarks of everything around it."""
