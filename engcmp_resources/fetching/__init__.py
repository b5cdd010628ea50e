"""What a study lists in SOURCES.json, brought here: one file for each kind of place, each file checked while it is written."""
