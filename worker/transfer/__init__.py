"""Pages of keys and values on their way from one worker to another, over TCP."""
