"""This package receives text: generations, the router that hands replies to them, and what asks for
missed text."""
