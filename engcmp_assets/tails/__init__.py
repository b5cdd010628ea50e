"""The tails room: how bad the worst rows are."""
