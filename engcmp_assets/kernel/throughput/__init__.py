"""Throughput (Block T): pure functions of its plan, its stream events, its cells and their comparison (MEASURES section 6)."""
