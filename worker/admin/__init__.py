"""What operators can order of one worker, and how it answers."""
