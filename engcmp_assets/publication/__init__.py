"""The pages that people read, made from SUMMARY.json alone."""
