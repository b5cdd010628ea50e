"""Rows as users have them on disk, in the layouts of the field: one file for each layout; `finding` tells which one a folder has."""
