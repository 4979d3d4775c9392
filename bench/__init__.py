"""The benchmarks that the README quotes; each is a command that prints its table."""
