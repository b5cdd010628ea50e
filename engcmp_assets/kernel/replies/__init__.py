"""What a long reply's own text tells: how it ended, and whether it went round in circles (MEASURES section 7)."""
