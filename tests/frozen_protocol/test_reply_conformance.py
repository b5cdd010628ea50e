"""The thresholds of the loop detectors are part of the freeze of a study that makes long replies, and of no other."""

from dataclasses import asdict

from engcmp_assets.frozen_protocol.conformance import frozen_values, frozen_versions
from engcmp_assets.frozen_protocol.reply_conformance import reply_values
from engcmp_assets.kernel.replies.spans import Thresholds
from engcmp_assets.kernel.reply_measures import REPLY_IDS
from engcmp_assets.kernel.study import load_study


def test_every_threshold_and_what_the_detectors_give_stand_in_the_vector() -> None:
    values = reply_values()
    assert {f"reply threshold {name}" for name in asdict(Thresholds())} < set(values)
    assert values["reply loop onset"] > 0 and values["reply self-repetition of a loop"] >= Thresholds().self_repetition
    assert values["reply novelty8 of plain words"] == 1.0
    assert values["reply median low"] < values["reply median"]


def test_only_a_study_with_long_replies_freezes_them() -> None:
    plain, long = load_study("smollm2-cpu").base, load_study("smollm2-replies").base
    assert not set(reply_values()) & set(frozen_values(plain)) and set(reply_values()) <= set(frozen_values(long))
    assert (
        not REPLY_IDS & set(frozen_versions(plain)["measures"]) and set(frozen_versions(long)["measures"]) >= REPLY_IDS
    )
