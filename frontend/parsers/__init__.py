"""How models write calls of tools and reasoning into their text: all forms, by name."""
