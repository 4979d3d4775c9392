"""Which worker of a pool has computed which prefix or served which session."""
