"""Images without a daemon: each line of the Dockerfile in a root that holds Debian and Python."""
