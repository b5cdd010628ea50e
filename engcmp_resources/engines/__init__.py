"""Engines: one file for each kind. `base` holds the interface."""
