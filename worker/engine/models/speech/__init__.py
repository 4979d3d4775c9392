"""Models that hear: an encoder of audio, and a decoder whose layers attend over what it gives."""
