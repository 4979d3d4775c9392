"""The parts of a frontend, floor by floor: each is complete when it is made."""
