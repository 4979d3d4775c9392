"""Who is there, what waits and what runs, for those who watch."""
