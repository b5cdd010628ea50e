"""The command `engcmp`: a thin layer over the functions that the assets call."""
