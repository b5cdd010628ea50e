"""Telemetry on the page of speeds: a strip where a series was read, and why there is none, launch by launch, where it was not."""

from __future__ import annotations

from typing import Any

from site_reading import Reader
from summary_sample import sample
from test_site import bare_evidence

from engcmp_assets.publication.site.evidence import SERIES
from engcmp_assets.publication.site.site import render_site

NO_GPU, GONE = "no NVIDIA device", "the GPU fell off the bus"


def strip() -> dict[str, Any]:
    return {"unit": "W", "points": [[0.0, 1.0], [5.0, 2.0]], "least": 1.0, "median": 1.5, "most": 2.0}


def launch(**read: Any) -> dict[str, Any]:
    missing = {name: {"missing": NO_GPU, "unit": "1"} for name in SERIES}
    return {"seconds": 5.0, "samples": 6, "series": missing | read}


def words(telemetry: dict[str, Any]) -> str:
    summary = sample()
    evidence = bare_evidence(summary) | {"telemetry": telemetry}
    return " ".join(one.text for one in Reader(render_site(summary, evidence)["speed.html"].decode("utf-8")).texts)


def test_a_series_that_no_launch_has_says_why_once() -> None:
    text = words({"a scoring": launch(), "b scoring": launch()})
    assert text.count(f"GPU, power drawn:  {NO_GPU}") == 1 and "a scoring" not in text


def test_a_series_that_some_launches_lack_names_them_and_their_reasons() -> None:
    gone = launch(temperature_c={"missing": GONE, "unit": "C"})
    text = words(
        {"a scoring": launch(power_w=strip(), temperature_c=strip()), "b scoring": launch(), "c serving": gone}
    )
    assert "GPU, power drawn, of some launches:  b scoring ,  c serving :" in text and "GPU, power drawn, in W:" in text
    assert f"GPU, temperature, of some launches:  b scoring :  {NO_GPU}" in text
    assert f"GPU, temperature, of some launches:  c serving :  {GONE}" in text


def test_launches_without_a_sample_and_none_at_all_are_said() -> None:
    assert "a scoring :  no sample was taken" in words({"a scoring": {"missing": "no sample was taken"}})
    assert "No launch of the study has been measured yet" in words({})
