"""How long replies are, arm against arm, where a cap censors them (MEASURES section 7, length ratio): paired by prompt, never by seed."""
