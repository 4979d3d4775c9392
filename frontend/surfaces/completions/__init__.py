"""This package holds OpenAI's completions: the body of a request and the events of its answer."""
