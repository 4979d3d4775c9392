"""The face of jetflock: the `jetflock` command and the Python client."""
