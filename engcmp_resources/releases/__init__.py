"""Where releases of an engine appear: a package index, a git repository, a container registry, or a folder of wheels.

A listing is what a place shows now. Which of it counts, and what follows, is decided in `engcmp_assets.engine_versions`.
"""
