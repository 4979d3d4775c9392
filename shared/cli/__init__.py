"""How a program takes its flags, shows its help, and is asked to stop."""
