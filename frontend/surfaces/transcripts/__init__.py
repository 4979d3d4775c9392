"""Holds transcripts of audio: the fields of a request, and its answer in OpenAI's words."""
