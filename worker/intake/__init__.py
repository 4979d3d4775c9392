"""Pulls requests from the queue, and decides of each: take it, offer it, or give it back."""
