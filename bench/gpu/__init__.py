"""What the GPU engine reaches of what the hardware can do."""
