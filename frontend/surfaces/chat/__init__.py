"""This package holds OpenAI's chat completions: the body of a request and the events of its
answer."""
