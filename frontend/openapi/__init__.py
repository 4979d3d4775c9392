"""The OpenAPI document: what the HTTP surface says of itself."""
