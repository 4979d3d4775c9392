"""This package gives orders to a running service, over HTTP on a port of its own, and knows who
may."""
