"""Decides who runs in the next step, and which pages it may have."""
