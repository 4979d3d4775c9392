"""What operators can order of a running service, and the parts that carry an order out."""
