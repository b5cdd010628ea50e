"""The verifier of an exported study. It needs Python's standard library and nothing else, and travels in the bundle."""
