"""This package holds tools: their fields, the grammars of calls, and the parser that tells calls
from content."""
