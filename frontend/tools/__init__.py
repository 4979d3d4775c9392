"""Tool calls and reasoning: what a template asks for, and what a model's text holds."""
