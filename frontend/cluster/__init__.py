"""This package looks at the whole service for whoever watches it: workers, loads, queues, paths of
requests."""
