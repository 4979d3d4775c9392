"""What starts and scales the programs: process tree, autoscaler, images, chart, demo model."""
