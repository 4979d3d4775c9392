"""This package knows the models that can be asked for: their cards, tokenizers and chat
templates."""
