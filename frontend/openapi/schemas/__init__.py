"""Holds the JSON Schemas of answers: made of the structs that are sent, or one file an API."""
