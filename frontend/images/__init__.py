"""Images in requests: where they come from, and what the model gets to see of them."""
