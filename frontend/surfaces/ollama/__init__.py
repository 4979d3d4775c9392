"""This package holds Ollama's API: its bodies, events, errors and names of models."""
