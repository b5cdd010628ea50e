"""A study as a folder that anyone can verify with Python alone: `engcmp export`."""
