"""This package reads the state of the whole service for pages and operators: workers, loads,
queues, and where requests are."""
