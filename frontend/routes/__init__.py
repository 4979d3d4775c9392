"""This package holds the HTTP routes: each reads a request, asks a package below, and sends the
answer."""
