"""How many workers a pool needs: what is seen of it, the policy, and what it asks of a host."""
