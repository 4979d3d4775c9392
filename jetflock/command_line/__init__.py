"""This package finds the programs behind commands, and prints what commands say."""
