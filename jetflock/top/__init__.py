"""`jetflock top`: workers, queues and what happens, as it happens."""
