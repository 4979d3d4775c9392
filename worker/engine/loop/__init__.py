"""The engine's loop: takes commands, launches steps, and reports what each one made."""
