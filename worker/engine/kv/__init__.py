"""Keys and values: their pages, who holds each, and the prefixes that stay for others."""
