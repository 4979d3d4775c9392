"""Makes the files of a tokenizer from what a GGUF file says of its vocabulary."""
