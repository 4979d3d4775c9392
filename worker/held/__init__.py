"""The requests that this worker holds, and where each of them stands."""
