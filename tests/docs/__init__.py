"""What the Markdown pages say is tried: their commands run, their links lead somewhere."""
