"""This package compiles grammars of clients in child processes, before a request with one is
accepted."""
