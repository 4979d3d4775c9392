"""From a step's hidden states and logits to tokens, logprobs and embeddings."""
