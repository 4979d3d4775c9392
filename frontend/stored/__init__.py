"""This package keeps what outlives a request: files, batches and responses, and erases it on
demand."""
