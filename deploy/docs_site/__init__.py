"""The site that `make docs` builds from docs/ and the pages beside it."""
