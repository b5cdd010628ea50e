"""Scores of a user's own row files: `engcmp score`, with the same functions that the assets call."""
