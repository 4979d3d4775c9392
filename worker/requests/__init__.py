"""Assembles what cares for the requests of a worker, and runs it until it has drained."""
