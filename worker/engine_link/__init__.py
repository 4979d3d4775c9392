"""What the I/O process and the engine process share: configuration, messages and frames."""
