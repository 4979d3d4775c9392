"""This package holds the JSON Schemas of answers, one file an API."""
