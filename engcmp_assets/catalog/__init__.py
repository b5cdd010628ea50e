"""catalog: every file of every artifact of every arm, as tables and as a page."""
