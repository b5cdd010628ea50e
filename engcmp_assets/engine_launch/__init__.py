"""engine_launch: one start or more of an arm's engine, what was asked for, and what the engine proved to be."""
