"""What the roles agree on: messages, subjects, streams, the fold, configuration and errors."""
