"""sources: what an arm needs, fetched by pin: the weights, the checkpoints made from them, and the engine's library."""
