"""What starts and scales the programs: local process tree, autoscaler, images, chart, demo model."""
