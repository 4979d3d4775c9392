"""The stages of a run: each module has `run(rig)`, and is run in a process of its own."""
