"""Makes small models that guess for a large one."""
