"""Guesses tokens, so that one step can confirm several."""
