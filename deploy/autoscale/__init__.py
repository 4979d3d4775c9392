"""The autoscaler of a host: a program, and the workers that it starts and stops."""
