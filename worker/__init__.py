"""The worker: pulls requests it has room for, runs the model, writes tokens to the log."""
