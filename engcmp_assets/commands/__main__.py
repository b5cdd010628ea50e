"""`python -m engcmp_assets.commands`: the same as `engcmp`."""

from __future__ import annotations

from engcmp_assets.commands.main import main

main()
