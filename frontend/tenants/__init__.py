"""Who asks, and how much each may ask for."""
