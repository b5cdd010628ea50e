"""Shared by every room: records, protocol, receipts, measures, uncertainty, plots, and the work that binds them to the store."""
