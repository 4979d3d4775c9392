"""Keys and values on a GPU, and the table that leads to their pages."""
