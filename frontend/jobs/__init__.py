"""This package holds the job, which is what a body asks for whatever its API, and the encoding of
its prompt."""
