"""Grammars of clients, tried in children before they are accepted."""
