"""Turns the grammars that clients send into the one form that the engine compiles."""
