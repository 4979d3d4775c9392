"""This package holds the text of one request, its event ids, and the JSON that all wire formats
share."""
