"""This package holds what each API understands and says: its bodies become jobs, and text becomes
its events."""
