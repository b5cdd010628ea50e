"""long_replies: stages of long replies and task checks, each reply a row, its text in the private store."""
