"""This package holds the page at `/`: its sources, and the document that they are joined into."""
