"""summaries: an arm's figures with their intervals and run-to-run floors."""
