"""The chaos suite: real processes under faults, clients that check each stream to the letter."""
