"""The forms in which models set reasoning apart, one file each."""
