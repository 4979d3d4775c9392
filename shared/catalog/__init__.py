"""The models and adapters that a service knows, and whether somebody serves them."""
