"""This package holds OpenAI's responses: bodies, events, and the store from which a response is
read again."""
