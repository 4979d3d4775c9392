"""`jetflock bench serve`: load on any OpenAI-compatible URL, and what its clients see."""
