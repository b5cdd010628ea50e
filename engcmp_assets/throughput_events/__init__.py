"""Raw events of Block T: what each stream of a plan sent, and when."""
