"""This package holds Anthropic's messages API: its bodies, events and errors."""
