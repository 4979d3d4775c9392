"""The log of a request: who owns it, which tokens count, and what a client may see."""
