"""Reads GGUF files, llama.cpp's format: one that holds weights, configuration and tokenizer."""
