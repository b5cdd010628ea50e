"""The scores room: precision per row, and the run-time test that rows and tokens are aligned."""
