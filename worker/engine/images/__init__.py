"""Images in prompts: where they stand in a step, and what the vision tower makes of them."""
