"""The whitespace that grammars allow in JSON."""

# Any amount is valid, but a model that likes spaces would never get out of it.
DEFAULT_WHITESPACE = r"( |\n[ \t]{0,40})"
