"""`jetflock chat`: a conversation in the terminal."""
