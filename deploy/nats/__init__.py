"""NATS for a fleet: three servers, and for each role a user with least rights."""
