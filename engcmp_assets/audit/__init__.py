"""What an auditor runs on a store without Dagster: verify everything, trace one figure."""
