"""Small models that guess for a large one, over the same pages."""
