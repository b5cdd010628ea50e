"""throughput_cells: the figures of each cell of the speed block, computed from its events."""
