"""This package writes the OpenAPI document and docs/api.md from the types that read request
bodies, and those that are sent."""
