"""What names a launch: another study, image, plan or rule for GPUs is another launch, which no store answers for."""

from __future__ import annotations

import dataclasses
from typing import Any

from engcmp_assets.engine_launch.step import parameters
from engcmp_assets.kernel.gpu_rules import GpuRules
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import Study, load_study

ARM = ArmKey.parse("q8_0/llamacpp-docker@b11549")


def changed(of: Study, /, **update: Any) -> Study:
    copy = dataclasses.replace(of)
    copy.__dict__["protocol"] = of.protocol.model_copy(update=update)
    return copy


def test_a_launch_is_named_by_all_that_it_depends_on_and_by_its_study() -> None:
    study = load_study("smollm2-docker")
    protocol = study.protocol
    own = parameters(study, ARM)
    image = protocol.sources["host-image"].model_copy(update={"digest": "sha256:" + "0" * 64})
    decode = protocol.capture.decode
    assert decode is not None
    plan = protocol.capture.model_copy(update={"decode": decode.model_copy(update={"launches": 2})})
    others = [
        changed(study, study="another"),
        changed(study, sources=dict(protocol.sources) | {"host-image": image}),
        changed(study, capture=plan),
        changed(study, gpus=GpuRules(use=(0,))),
    ]
    assert all(parameters(other, ARM) != own for other in others)
    assert parameters(changed(study, title="another title"), ARM) == own
