"""The settings of an engine kind, as a protocol may have them: what is wrong is named with what is right."""

from __future__ import annotations

import pytest

from engcmp_resources.engines.servers import checked_settings
from engcmp_resources.errors import EngcmpError


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        ("docker", {"ap": "vllm"}, "ap: Extra inputs are not permitted; did you mean 'api'"),
        ("docker", {"api": "vllm", "network_": "host"}, "network_: Extra inputs are not permitted; did you mean 'network'"),
        ("docker", {"api": "vllm", "zzz": 1}, r"zzz: Extra inputs are not permitted \(here\); it takes api, entrypoint"),
        ("docker", {}, "api: Field required .*mend that setting"),
        ("docker", {"api": "vllm", "mounts": [{"file": "model", "targt": "/a"}]}, "mounts.0.targt: .* did you mean 'target'"),
        ("external", {"url": "http://127.0.0.1:1", "modl": "m", "api": "vllm"}, "modl: .* did you mean 'model'"),
    ],
)  # fmt: skip
def test_a_misspelt_setting_is_named_with_the_right_one(kind: str, settings: dict[str, object], said: str) -> None:
    with pytest.raises(EngcmpError, match=f"settings of an engine of kind {kind}: {said}"):
        checked_settings(kind, settings, where="here")
