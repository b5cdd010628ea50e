"""Tables of a protocol for servers that run already (kind `external`): simulators, which tests start and end. No tests."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tiny import TINY, TinyStudy

MODEL, VOCAB = "sim/model", 49_152
RULE = "# ---------------------------------------------------------------- "
_ENGINE = """[engines.{name}]
kind = "external"
label = "{name}, simulated"
[engines.{name}.settings]
url = "http://127.0.0.1:{port}"
api = "vllm"
model = "{model}"
{more}[engines.{name}.versions.v1]
{source}[[arms]]
arm = "q4_0/{name}@v1"
"""
_PANEL = """[panels.pl]
label = "light rows of a full reference"
reference = "full"
keep = "light"
rows = "even"
rows_per_window = {rows}
roles = ["context"]
measures = ["kl_top20", "nll"]
primary = ["kl_top20"]
pair_measures = ["kl_pair20"]
[capture.prefill]
panels = ["pl"]
launches = 1
repeats = {repeats}
"""


def engine_table(name: str, port: int, *, source: str = "", more: str = "") -> str:
    """A server at `port` and its one arm `q4_0/NAME@v1`; `more` are further lines of its settings, `source` names what it is built of."""
    return _ENGINE.format(
        name=name, port=port, model=MODEL, more=more, source=f'source = "{source}"\n' if source else ""
    )


def make_served(tiny: TinyStudy, engines: str, later: str, *, rows: int = 4, repeats: int = 1) -> None:
    """Give the tiny study these engines in place of llama.cpp, one light panel `pl`, and `later` in place of its pairs. Not frozen."""
    path = tiny.folder / "protocol.toml"
    text = path.read_text(encoding="utf-8")
    for begin, end, new in (
        ("[engines.llamacpp]\n", f"{RULE}what is measured", engines),
        ("# A panel is windows", f"{RULE}how it is judged", _PANEL.format(rows=rows, repeats=repeats)),
        ("[[comparisons]]", f"{RULE}what comes later", later),
        ("# Where new versions of the engine appear", "[limits]", ""),
    ):
        assert text.count(begin) >= 1 and text.count(end) == 1, (begin, end)
        text = text[: text.index(begin)] + new + text[text.index(end) :]
    text = re.sub(r"\[sources\.llamacpp-b\d+\]\n(?:(?!\[sources\.weights|# ---).*\n)*", "", text)
    path.write_text(text, encoding="utf-8")


def freeze(tiny: TinyStudy) -> None:
    done = tiny.run("freeze", TINY)
    assert done.returncode == 0, done.stderr


def write_known(tiny: TinyStudy, path: Path) -> None:
    """The texts of the study's windows with their tokens, as the simulator reads them."""
    prompts = json.loads((tiny.folder / "prompt_set.json").read_bytes())
    texts = {
        (tiny.folder / "texts" / f"{one['window_id']}.txt").read_text(encoding="utf-8"): one["tokens"]
        for one in prompts["windows"]
    }
    path.write_text(json.dumps(texts), encoding="utf-8")
