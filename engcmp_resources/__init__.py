"""What touches the world: engines, package index, store, protocol files, locks. Imports nothing else of this project."""
