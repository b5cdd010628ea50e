"""frozen_protocol: the study's folder as it was frozen, and the hash that everything downstream carries."""
