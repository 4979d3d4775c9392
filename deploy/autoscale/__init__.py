"""How many workers a pool has: policy, estimates and the processes that come and go by it."""
