"""Two arms that think, on the simulator, from replies to pages: lengths with those that were cut, and a ratio that is withheld."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from ports import free_port
from replying import SAMPLING, Here
from served_tables import MODEL, VOCAB
from speedy import served_base
from tiny import TINY, TinyStudy

from engcmp_assets.kernel.names import REPLY_CHECKS
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.throughput.plans import CHAT
from engcmp_assets.kernel.work import Done, materialize
from engcmp_assets.long_replies.session import measure_serving
from engcmp_assets.steps import step_named
from tests.simulator.running import Simulator, running_simulator

SHORT, LONG = ArmKey.parse("q4_0/served@v1"), ArmKey.parse("q4_0/served@v2")
PROMPTS = 6
LOW, HIGH = 30, 200  # the caps of the two stages, in tokens
TABLE = f"""[[comparisons]]
pair_id = "longer"
label = "v2 thinks longer than v1"
candidate = "{LONG}"
baseline = "{SHORT}"
reply_tests = ["thinks_longer"]
[long_replies]
kinds = ["reasoning"]
replies_per_kind = {PROMPTS}
seed = 11
concurrency = 1
{SAMPLING}[long_replies.chat]
before = "<|im_start|>user\\n"
after = "<|im_end|>\\n<|im_start|>assistant\\n"
[[long_replies.stages]]
stage = "L1"
cap_tokens = {LOW}
[[long_replies.stages]]
stage = "L2"
cap_tokens = {HIGH}
"""
SECOND = f"""[engines.served.versions.v2]
[[arms]]
arm = "{SHORT}"
blocks = ["l"]
[[arms]]
arm = "{LONG}"
blocks = ["l"]
"""


def study(root: Path, home: Path, port: int) -> TinyStudy:
    """Six prompts, each of another length, asked of two versions of a server: neither has rows or speeds."""
    tiny = served_base(root, home, port)
    (tiny.folder / "replies").mkdir()
    for number in range(1, PROMPTS + 1):
        words = " and on" * number
        (tiny.folder / "replies" / f"reasoning-{number}.txt").write_text(f"Think on{words}.\n", encoding="utf-8")
    path = tiny.folder / "protocol.toml"
    text = path.read_text(encoding="utf-8").replace("comparisons = []\n", "", 1)
    text = text.replace(f'[[arms]]\narm = "{SHORT}"\n', SECOND, 1).replace("[limits]", f"{TABLE}\n[limits]", 1)
    path.write_text(text, encoding="utf-8")
    done = tiny.run("freeze", TINY)
    assert done.returncode == 0, done.stderr
    return tiny


def thoughts(tiny: TinyStudy, simulator: Simulator, times: int) -> list[dict[str, Any] | str]:
    """What the simulator is to say to each prompt, which it knows by its length: a thought that grows with its number, then an answer."""
    scripts: list[dict[str, Any] | str] = ["token_ids_missing"]
    for number in range(1, PROMPTS + 1):
        said = (tiny.folder / "replies" / f"reasoning-{number}.txt").read_text(encoding="utf-8").removesuffix("\n")
        body = {"model": MODEL, "messages": [{"role": "user", "content": said}], "max_tokens": 1}
        usage = httpx.post(f"{simulator.url}{CHAT}", json=body).json()["usage"]
        thought = "".join("abcdefghij"[(at * at + number) % 10] for at in range(times * number * 4))
        at = {"prompt_tokens": usage["prompt_tokens"], "path": CHAT}
        scripts.append({"name": "reply_text", "at": at, "text": f"{thought}</think>Yes."})
    assert len({one["at"]["prompt_tokens"] for one in scripts if isinstance(one, dict)}) == PROMPTS
    return scripts


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, measured_home: Path) -> Iterator[tuple[Here, dict[str, Done]]]:
    port = free_port()
    tiny = study(tmp_path_factory.mktemp("thinking") / "two", measured_home, port)
    with pytest.MonkeyPatch.context() as patch:
        here = Here(tiny, patch)
        materialize(here.session, step_named(here.session.study, "frozen_protocol"), None)
        done: dict[str, Done] = {}
        for arm, times in ((SHORT, 1), (LONG, 2)):
            for name in ("sources", "prompt_set"):
                materialize(here.session, step_named(here.session.study, name), arm)
            options: dict[str, Any] = {
                "port": port,
                "model": MODEL,
                "vocab": VOCAB,
                "context": 16_384,
                "max_output": 8192,
            }
            with running_simulator("vllm", **options) as simulator:
                simulator.script(*thoughts(tiny, simulator, times))
                list(measure_serving(here.session, arm))
            for name in (REPLY_CHECKS, "summaries"):
                done[f"{name} {arm}"] = materialize(here.session, step_named(here.session.study, name), arm)
        for name in ("comparisons", "publication"):
            done[name] = materialize(here.session, step_named(here.session.study, name), None)
        yield here, done


def test_lengths_of_thinking_keep_those_that_were_cut(made: tuple[Here, dict[str, Done]]) -> None:
    here, done = made
    groups = {
        arm: {
            one["population"]: one
            for one in json.loads(here.output(done[f"{REPLY_CHECKS} {arm}"], "checks.json").read_bytes())["groups"]
        }
        for arm in (SHORT, LONG)
    }
    low = groups[LONG]["long-L1-reasoning"]
    assert low["endings"] == {"finished": 3, "capped": 3} and low["capped_in"] == {"reasoning": 3}
    (median,) = (one for one in low["figures"] if one["measure"] == "thinking_tokens")
    assert "missing" in median["value"], "half of the replies are cut: no median is known"
    (known,) = (one for one in groups[SHORT]["long-L2-reasoning"]["figures"] if one["measure"] == "thinking_tokens")
    assert known["value"] > 0 and groups[SHORT]["long-L2-reasoning"]["endings"] == {"finished": PROMPTS}


def test_the_ratio_is_given_where_few_were_cut_and_withheld_with_its_reason_elsewhere(
    made: tuple[Here, dict[str, Done]],
) -> None:
    here, done = made
    (pair,) = json.loads(here.output(done["comparisons"], "comparisons.json").read_bytes())["pairs"]
    figures = {one["population"]: one for one in pair["replies"]["figures"] if one["measure"] == "thinking_ratio"}
    assert figures["long-L2"]["value"] == pytest.approx(2.0, rel=0.1) and figures["long-L2"]["verdict"] == "resolved"
    withheld = figures["long-L1"]["value"]["missing"]
    assert withheld.startswith("bounded below") and "50% of the candidate's replies were capped" in withheld
    stages = {one["population"]: one["thinking"]["main"] for one in pair["replies"]["stages"]}
    assert (
        stages["long-L1"]["capped"]["candidate_more"] == 3 and stages["long-L1"]["longer"]["candidate_more"] == PROMPTS
    )


def test_the_pages_show_both(made: tuple[Here, dict[str, Done]]) -> None:
    here, done = made
    page = here.output(done["publication"], "site/thinking.html").read_text(encoding="utf-8")
    summary = here.output(done["publication"], "SUMMARY.md").read_text(encoding="utf-8")
    for text in (page, summary):
        assert "bounded below" in text and "50% of the candidate" in text.replace("&#39;", "'")
    assert (
        "Thinking: candidate over baseline, paired by prompt" in page and "Not covered" not in page.split("<main", 1)[1]
    )
