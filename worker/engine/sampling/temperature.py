"""Where a temperature stops to matter."""

GREEDY_TEMPERATURE = 1e-5  # up to here noise decides nothing, and division may overflow
