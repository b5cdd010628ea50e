"""Checks of what a reply answers (MEASURES section 7): code, JSON, math, needles. Each has a self-test that must pass before it grades.

A reply that did not finish is never wrong: its outcome is the word for how it ended (`capped`, `stopped_early`, `error`).
"""
