"""This package reads the configurations of the families that the fused decoder computes."""
