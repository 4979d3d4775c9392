"""`jetflock doctor`: looks for what keeps a service from running well, and names the remedy."""
