"""The main job as a user meets it: `make demo`."""
