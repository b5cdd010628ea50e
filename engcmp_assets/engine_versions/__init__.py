"""engine_versions: which releases of each engine there are, which of them count, and a candidate iteration for each new one."""
