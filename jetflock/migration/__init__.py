"""This package moves a running service to other streams."""
