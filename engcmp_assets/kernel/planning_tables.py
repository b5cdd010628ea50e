"""The tables `[rates.ENGINE]` of a protocol: how fast an engine is taken to be when the hours of a plan are worked out.

Rates only tell how long something will take; no figure is computed from them. A study without them has plans without hours.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from engcmp_assets.kernel.fields import Strict

_Rate = Annotated[float, Field(gt=0)]


class EngineRates(Strict):
    """What an engine's hours are worked out from, and where that is known from (`basis`). A rate that is left out is unknown.

    `measured_on` is the arm that the rates are of: the hours of any other arm are marked as worked out at borrowed rates.

    `start_s`: seconds until the engine is ready. `prefill_tok_s`: prompt tokens per second of one request. `decode_tok_s`: tokens per
    second of all streams together, by the number of requests at a time.
    """

    basis: str = Field(min_length=1)
    measured_on: str | None = None
    start_s: Annotated[float, Field(ge=0)] | None = None
    prefill_tok_s: _Rate | None = None
    decode_tok_s: dict[Annotated[str, Field(pattern=r"^[1-9][0-9]*$")], _Rate] = Field(default_factory=dict)
