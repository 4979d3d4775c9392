"""This package holds embeddings: the body of a request, and its answer in OpenAI's and Ollama's
words."""
