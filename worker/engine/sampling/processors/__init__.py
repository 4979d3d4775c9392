"""What requests change of their logits before a token is drawn, one subject a file."""
