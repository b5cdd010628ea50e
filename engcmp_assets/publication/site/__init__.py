"""The site: a page for each question of a reader, made from SUMMARY.json and EVIDENCE.json and nothing else."""
