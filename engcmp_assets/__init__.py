"""What is computed: one room per artifact, named as in the asset graph."""
