"""This package holds the sub-commands of `jetflock`, one file each; larger ones have packages of
their own."""
