"""What requests change of their logits before a token is drawn, one kind of change a file."""
