"""Keys and values on a GPU, and the table of their pages."""
