"""The tiny study of two servers over HTTP that run already (kind `external`): simulators, which tests start and end. No tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ports import free_port
from served_tables import MODEL, RULE, VOCAB, engine_table, freeze, make_served, write_known
from tiny import TINY, TinyStudy, make_tiny

from engcmp_resources import host_image
from tests.simulator.running import Simulator, running_simulator

OURS, RIVAL = "q4_0/ours@v1", "q4_0/rival@v1"
IMAGE = f"""[sources.host-image]
image = "{host_image.NAME}"
tag = "{host_image.TAG}"
digest = "{host_image.IMAGE_ID}"
license = "Apache-2.0"
"""
_CAPABILITIES = "capabilities = { prompt_logprobs = 20, tokenizer = true }\n"
PAIR = f"""[[comparisons]]
pair_id = "ours-vs-rival"
label = "ours beside the rival"
candidate = "{OURS}"
baseline = "{RIVAL}"
"""
NAMES = ("ours", "rival")


@dataclass
class Servers:
    """A study of two servers, frozen; each simulator is started by a test, as often as it likes."""

    tiny: TinyStudy
    ports: Mapping[str, int]
    known: Path
    _stack: ExitStack = field(default_factory=ExitStack)

    def start(self, name: str, *faults: dict[str, Any] | str, **options: Any) -> Simulator:
        asked = {"port": self.ports[name], "model": MODEL, "vocab": VOCAB, "known_texts": self.known} | options
        return self._stack.enter_context(running_simulator("vllm", faults=list(faults), **asked))

    def lengths(self) -> list[int]:
        """Tokens of each window, in order."""
        prompts = json.loads((self.tiny.folder / "prompt_set.json").read_bytes())
        return [len(one["tokens"]) for one in prompts["windows"]]

    def receipt(self, artifact: str, arm: str = "_study") -> dict[str, Any]:
        head = json.loads((self.tiny.home / "heads" / TINY / arm.replace("/", "~") / f"{artifact}.json").read_bytes())
        found: dict[str, Any] = json.loads(
            (self.tiny.home / "receipts" / f"{head['receipt_sha256']}.json").read_bytes()
        )
        return found

    def output(self, receipt: Mapping[str, Any], name: str) -> Path:
        (one,) = (entry for entry in receipt["outputs"] if entry["name"] == name)
        return self.tiny.home / "store" / one["sha256"][:2] / f"{one['sha256']}.{one['suffix']}"

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.output(self.receipt("publication"), "SUMMARY.json").read_bytes())
        return found

    def pair(self) -> dict[str, Any]:
        (found,) = self.summary()["comparisons"]
        return dict(found)

    def captured(self, arm: str) -> list[Path]:
        return list((self.tiny.home / "heads" / TINY / arm.replace("/", "~")).glob("captured_rows/*"))

    def stop(self) -> None:
        self._stack.close()


def frozen_study(root: Path, measured_home: Path, ports: Sequence[int], repeats: int, more: str = "") -> TinyStudy:
    tiny = make_tiny(root, measured_home)
    engines = "".join(
        engine_table(name, port, source="host-image", more=more + _CAPABILITIES)
        for name, port in zip(NAMES, ports, strict=True)
    )
    make_served(tiny, engines, PAIR, repeats=repeats)
    path, rule = tiny.folder / "protocol.toml", f"{RULE}reference"
    path.write_text(path.read_text(encoding="utf-8").replace(rule, f"{IMAGE}{rule}"), encoding="utf-8")
    freeze(tiny)
    return tiny


def served_pair(root: Path, measured_home: Path, repeats: int, more: str = "") -> Servers:
    """The study below `root`, for a number of repeats; no server runs yet. `more` are further lines of each engine's settings."""
    ports = [free_port() for _ in NAMES]
    tiny = frozen_study(root / "study", measured_home, ports, repeats, more)
    known = root / "known.json"
    write_known(tiny, known)
    return Servers(tiny, dict(zip(NAMES, ports, strict=True)), known)
