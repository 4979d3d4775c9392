"""This package reads and checks the fields of bodies that several APIs share, such as sampling and
grammars."""
