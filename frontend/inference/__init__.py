"""This package turns the body of a request into an accepted request, and its text into an answer
that ends."""
