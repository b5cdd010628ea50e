"""Every pin, setting, count and figure that the documents of glm53-flash state is in the study, or is listed as not known."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest
from stated import Stated, holds, in_figure, read_list, tokens

from engcmp_assets.kernel.published_figures import FIGURES_FILE
from engcmp_assets.kernel.study import load_study

LISTED = read_list()


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return {name: data.decode("utf-8") for name, data in load_study("glm53-flash").files.items()}


def token(one: dict[str, Any]) -> Stated:
    return Stated(one["document"], one["line"], one["kind"], one["text"])


def lacking(files: dict[str, str]) -> list[str]:
    """Tokens that are not where the list says."""
    figures = {one["id"]: one for one in json.loads(files[FIGURES_FILE])["figures"]}
    missing = []
    for one in LISTED["stated"]:
        if "figure" in one:
            held = one["figure"] in figures and in_figure(figures[one["figure"]], token(one))
        else:
            held = "beside" in one or holds(files.get(one["file"], ""), token(one))
        if not held:
            missing.append(f"{one['document']} line {one['line']}: {one['kind']} {one['text']}")
    counts = (one for one in LISTED["counts"] if one["holds"] not in files[one["file"]])
    return missing + [f"{one['document']} line {one['line']}: {one['says']}" for one in counts]


def test_every_stated_token_is_where_the_list_says(files: dict[str, str]) -> None:
    assert not lacking(files)
    assert len(LISTED["stated"]) > 500 and len(LISTED["counts"]) > 80


def test_nothing_stands_beside_the_study_but_words_of_tools_and_places_that_each_launch_writes() -> None:
    beside = [one for one in LISTED["stated"] if "beside" in one]
    assert {one["beside"] for one in beside} == set(LISTED["beside"])
    kinds = Counter(one["kind"] for one in beside)
    assert set(kinds) == {"option", "setting", "number"} and kinds["number"] == 4
    keys = {one["text"].partition("=")[0] for one in beside if one["kind"] == "setting"}
    assert keys == {"IMAGE", "PORT", "ADDR", "HF_HOME", "API_KEY_FILE", "COORDINATOR_DOCKER_INFERENCE"}


@pytest.mark.parametrize(
    ("name", "old", "new", "told"),
    [
        ("SOURCES.json", "0490d2f708b12145", "0490d2f708b12146", "hash 0490d2f708b12145"),
        ("SOURCES.json", "GLM-5.3-Flash-DFlash2", "GLM-5.3-Flash-DFlash3", "repository incoai/GLM-5.3-Flash-DFlash2"),
        ("configs/cuteafd-w8a16-amax.config", "FP8_SCALES=amax", "FP8_SCALES=best", "W8A16 prefill + amax"),
        ("configs/cuteafd-k4-2rtx.config", "MAX_CONTEXT_TOKENS=262144", "", "context up to 262,144 tokens"),
        (FIGURES_FILE, "+0.0036 [+0.0020, +0.0051]", "+0.0035 [+0.0020, +0.0051]", "number +0.0036"),
        (FIGURES_FILE, "5,799,424", "5,799,425", "number 5,799,424"),
        ("panels.toml", "windows = 64", "windows = 63", "64/64 windows"),
        ("gaps.toml", "-score-f1{a,b,c,d}.config", "", "config -score-f1{a,b,c,d}.config"),
    ],
)
def test_a_pin_that_changes_is_named_with_its_document_and_line(
    files: dict[str, str], name: str, old: str, new: str, told: str
) -> None:
    assert old in files[name]
    missing = lacking(files | {name: files[name].replace(old, new)})
    assert any(told in one and re.match(r"(review|reproduce|v4|readme) line \d+: ", one) for one in missing), missing


def test_what_is_read_out_of_a_document() -> None:
    text = (
        "Pull `ghcr.io/tpurtell/x:v3.0.1@sha256:392db7c0` at v4.0.0 on 2026-10-31 (run.sh:2003-2006).\n"
        "FP8_SCALES=amax, 5,799,4241.22x the 34.8K of 93.50%, \u22120.0023 [+0.0031, 0.5], --dry-run a.config\n"
    )
    found = {(one.line, one.kind, one.text) for one in tokens("d", text)}
    assert found == {
        (1, "hash", "sha256:392db7c0"), (1, "version", "v3.0.1"), (1, "version", "v4.0.0"), (1, "repository", "ghcr.io/tpurtell/x"),
        (2, "setting", "FP8_SCALES=amax"), (2, "number", "5,799,424"), (2, "number", "1.22x"), (2, "number", "34.8K"),
        (2, "number", "93.50%"), (2, "number", "\u22120.0023"), (2, "number", "+0.0031"), (2, "number", "0.5"), (2, "option", "--dry-run"),
        (2, "config", "a.config"),
    }  # fmt: skip


def test_a_number_is_held_as_that_number_and_no_other() -> None:
    one = Stated("d", 1, "number", "4,352")
    assert holds("aligned to 4352 tokens", one) and holds("4_352", one) and holds("x = 4,352.", one)
    assert not holds("14,352", one) and not holds("43525", one) and not holds("4,352.5", one)
    minus = Stated("d", 1, "number", "\u22120.35")
    assert in_figure({"printed": "-0.35 [-0.54, -0.16]"}, minus) and not in_figure({"printed": "+0.35"}, minus)
