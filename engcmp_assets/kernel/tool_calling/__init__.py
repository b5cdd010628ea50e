"""Tool calling (MEASURES section 7): twelve scenarios of several turns with a deterministic grader, and the comparison of suite runs."""
