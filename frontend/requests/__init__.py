"""Bodies of requests: read, checked, and made into what a worker takes."""
