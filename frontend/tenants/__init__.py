"""This package knows whose requests they are: API keys, rates, what is outstanding, and who shares
prefixes."""
