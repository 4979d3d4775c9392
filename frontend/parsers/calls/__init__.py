"""What parsers of tool calls are made of: heads and arguments of calls, in JSON or in tags."""
