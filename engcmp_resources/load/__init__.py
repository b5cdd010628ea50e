"""Load on a server: streams timed as their bytes arrive, the loops that drive them, a null server, and control requests beside them."""
