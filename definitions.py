"""The Dagster code location: one Definitions made from the studies in protocol/."""

from __future__ import annotations

from engcmp_assets.graph import definitions

defs = definitions()
