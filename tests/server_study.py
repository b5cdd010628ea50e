"""The tiny study of servers in containers: simulators, started by stand-ins of the launchers of CuteAFD and of the vLLM fork. No tests."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

from homes import CHECKOUT
from tiny import TINY, TinyStudy, make_tiny

from engcmp_resources import host_image
from tests.launchers.launched import LAUNCHERS, MODEL, TAG, repository
from tests.simulator.container import mounts

VOCAB = 49_152
IMAGE = f"""[sources.host-image]
image = "{host_image.NAME}"
tag = "{host_image.TAG}"
digest = "{host_image.IMAGE_ID}"
license = "Apache-2.0"
"""
AFD = """[engines.cuteafd]
kind = "cuteafd"
label = "CuteAFD, simulated"
[engines.cuteafd.settings]
capabilities = { rows = ["prefill", "decode"] }
[engines.cuteafd.settings.config]
MODEL_ID = "%s"
MAX_OUTPUT_TOKENS = 4096
[engines.cuteafd.versions."v3.0.1"]
source = "cuteafd"
files = { image = "host-image" }
"""  # fmt: skip
FORK = """[engines.fork]
kind = "vllm-fork"
label = "the vLLM fork, simulated"
[engines.fork.settings]
served_model = "%s"
capabilities = { prompt_logprobs = 20, tokenizer = true }
environment = { MODEL_PROFILE = "k4", MAX_MODEL_LEN = "4096" }
[engines.fork.versions."v0.9.2"]
source = "fork"
files = { image = "host-image" }
"""
FULL_PANELS = """[panels.pa]
label = "full rows, both paths"
reference = "full"
rows = "consecutive"
rows_per_window = 3
roles = ["context"]
measures = ["kl_full", "nll", "top1"]
primary = ["kl_full"]
pair_measures = ["kl_pair_full", "rows_bit_identical"]
[capture.prefill]
panels = ["pa"]
launches = 1
repeats = 1
[capture.decode]
panels = ["pa"]
launches = 1
repeats = 1
"""
LIGHT_PANELS = """[panels.pl]
label = "light rows of a full reference"
reference = "full"
keep = "light"
rows = "even"
rows_per_window = 4
roles = ["context"]
measures = ["kl_top20", "nll", "top1"]
primary = ["kl_top20"]
pair_measures = ["kl_pair20"]
[panels.pk]
label = "light rows of a top-K reference"
reference = "topk"
top_k = 1024
keep = "light"
rows = "even"
rows_per_window = 4
roles = ["context"]
measures = ["kl_pb20", "nll"]
primary = []
pair_measures = ["kl_pair20"]
[capture.prefill]
panels = ["pl", "pk"]
launches = 1
repeats = 2
"""
PAIR = """[[comparisons]]
pair_id = "fork-vs-cuteafd"
label = "the fork beside CuteAFD"
candidate = "q4_0/fork@v0.9.2"
baseline = "q4_0/cuteafd@v3.0.1"
"""
FULL_ARMS, LIGHT_ARMS = ["q4_0/cuteafd@v3.0.1"], ["q4_0/cuteafd@v3.0.1", "q4_0/fork@v0.9.2"]


def launcher_source(root: Path, name: str, dialect: str, stand_in: str, known: Path, *options: str) -> str:
    """A repository of the stand-in as a source; its script starts the simulator with these options."""
    volumes = [f"-v={source}:{how['bind']}:{how['mode']}" for source, how in mounts().items()]
    inside = ["-e=OPENBLAS_NUM_THREADS=1", "-e=PYTHONDONTWRITEBYTECODE=1", f"-w={CHECKOUT}", f"-v={known}:{known}:ro"]
    command = [
        sys.executable,
        "-m",
        "tests.simulator",
        "--dialect",
        dialect,
        "--vocab",
        str(VOCAB),
        "--known-texts",
        str(known),
    ]
    words = {"SIM_DOCKER_ARGUMENTS": [*volumes, *inside], "SIM_COMMAND": [*command, *options]}
    text = "".join(f"{key}={shlex.quote(shlex.join(values))}\n" for key, values in words.items())
    commit = repository(root / f"{name}-repository", {"simulator.env": text}, LAUNCHERS / stand_in)
    return f'[sources.{name}]\nrepository = "file://{root / f"{name}-repository"}"\ntag = "{TAG}"\ncommit = "{commit}"\nlicense = "MIT"\n'


def server_study(root: Path, measured_home: Path, *, light: bool) -> TinyStudy:
    """The tiny study with engines that are servers in place of llama.cpp, frozen."""
    tiny = make_tiny(root, measured_home)
    path = tiny.folder / "protocol.toml"
    text = path.read_text(encoding="utf-8")
    known = root / "known.json"
    known.write_text("{}", encoding="utf-8")
    sources = [IMAGE, launcher_source(root, "cuteafd", "cuteafd", "cuteafd", known, "--perturb", "0.1")]
    engines = AFD % MODEL
    if light:
        sources.append(launcher_source(root, "fork", "vllm", "vllm_fork", known))
        engines += FORK % MODEL
    arms = "".join(f'[[arms]]\narm = "{arm}"\n' for arm in (LIGHT_ARMS if light else FULL_ARMS))
    parts = (
        ("[engines.llamacpp]\n", "# ---------------------------------------------------------------- what is measured", engines + arms),
        ("# A panel is windows", "# ---------------------------------------------------------------- how it is judged",
         LIGHT_PANELS if light else FULL_PANELS),
        ("[[comparisons]]", "# ---------------------------------------------------------------- what comes later", PAIR if light else ""),
        ("# Where new versions of the engine appear", "[limits]", ""),
    )  # fmt: skip
    for begin, end, new in parts:
        assert text.count(begin) >= 1 and text.count(end) == 1, (begin, end)
        text = text[: text.index(begin)] + new + text[text.index(end) :]
    text = re.sub(r"\[sources\.llamacpp-b\d+\]\n(?:(?!\[sources\.weights|# ---).*\n)*", "", text)
    place = "# ---------------------------------------------------------------- reference"
    if not light:  # without a pair: an empty list of comparisons stands before the first table
        text = text.replace('owners = ["team:engcmp"]\n', 'owners = ["team:engcmp"]\ncomparisons = []\n')
    path.write_text(text.replace(place, "\n".join(sources) + place), encoding="utf-8")
    done = tiny.run("freeze", TINY)
    assert done.returncode == 0, done.stderr
    prompts = json.loads((tiny.folder / "prompt_set.json").read_bytes())
    texts = {
        (tiny.folder / "texts" / f"{one['window_id']}.txt").read_text(encoding="utf-8"): one["tokens"]
        for one in prompts["windows"]
    }
    known.write_text(json.dumps(texts), encoding="utf-8")
    return tiny
