"""long_output_checks: how each long reply ended, whether it went round in circles, and whether what it says is right."""
