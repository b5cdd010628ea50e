"""Studies of servers end to end: sources, launch by a stand-in of the launcher, capture, scores, comparison, proof.

The engines are the simulator in real containers, started by scripts that stand for the launchers of CuteAFD and of the vLLM fork.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from docker_engine import docker_engine  # noqa: F401 - a fixture
from homes import CHECKOUT
from tiny import TINY, TinyStudy, make_tiny

from engcmp_assets.kernel.measures import LIGHT_ROW_MEASURES
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.tables import read_parquet
from engcmp_assets.kernel.window_files import read_full, read_light
from engcmp_resources import host_image
from engcmp_resources.containers import DockerHost
from tests.launchers.launched import LAUNCHERS, MODEL, TAG, repository
from tests.simulator.container import mounts
from tests.simulator.model import Model

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the image engcmp/host runs this host's own programs")

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


@pytest.fixture(autouse=True)
def _image(docker_engine: None) -> None:
    host = DockerHost()
    host_image.ensure(host)
    host.close()


def loaded(tiny: TinyStudy) -> Study:
    from engcmp_assets.kernel.study import load_study

    return load_study(TINY)


def outputs(tiny: TinyStudy, arm: str, artifact: str) -> dict[str, Path]:
    head = json.loads((tiny.home / "heads" / TINY / arm.replace("/", "~") / f"{artifact}.json").read_bytes())
    receipt = json.loads((tiny.home / "receipts" / f"{head['receipt_sha256']}.json").read_bytes())
    return {
        one["name"]: tiny.home / "store" / one["sha256"][:2] / f"{one['sha256']}.{one['suffix']}"
        for one in receipt["outputs"]
    }


def test_full_rows_of_both_score_paths_by_the_launcher_of_cuteafd(
    tmp_path: Path, measured_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = server_study(tmp_path, measured_home, light=False)
    done = tiny.run("run", TINY)
    assert done.returncode == 0, done.stderr[-3000:]
    monkeypatch.setenv("ENGCMP_PROTOCOL", str(tiny.root / "protocol"))
    panel, (arm,) = loaded(tiny).panel("pa"), FULL_ARMS
    files = outputs(tiny, arm, "captured_rows/pa")
    model = Model(vocab=VOCAB, seed=1, perturb=0.1)
    for window in panel.windows:
        truth = model.rows(list(window.tokens), list(window.positions))
        for run in ("1.1", "2.1"):  # prefill, decode: the simulator computes both alike
            rows = read_full(files[f"rows/{run}/{window.window_id}"], window, vocab=VOCAB).astype(np.float64)
            wanted = log_softmax(np.asarray(truth, dtype=np.float64)).astype(np.float32)
            assert np.array_equal(rows.astype(np.float32), wanted), (window.window_id, run)
    starts = json.loads(outputs(tiny, arm, "engine_launch/scoring")["starts.json"].read_bytes())
    assert [start["path"] for start in starts] == ["prefill", "decode"]
    assert all(start["facts"]["container"]["restart_count"] == 0 for start in starts)
    assert all(start["facts"]["launcher"]["commit"] and start["facts"]["tokenizer_probed"] is False for start in starts)
    proved = tiny.run("verify", TINY)
    assert proved.returncode == 0, proved.stdout


def test_light_rows_of_two_engines_are_captured_scored_and_compared(
    tmp_path: Path, measured_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = server_study(tmp_path, measured_home, light=True)
    done = tiny.run("run", TINY)
    assert done.returncode == 0, done.stderr[-3000:]
    monkeypatch.setenv("ENGCMP_PROTOCOL", str(tiny.root / "protocol"))
    panel = loaded(tiny).panel("pl")
    for arm, perturb in zip(LIGHT_ARMS, (0.1, 0.0), strict=True):
        files, model = outputs(tiny, arm, "captured_rows/pl"), Model(vocab=VOCAB, seed=1, perturb=perturb)
        for window in panel.windows:
            rows = read_light(files[f"rows/1.1/{window.window_id}"], window, vocab=VOCAB)
            truth = log_softmax(np.asarray(model.rows(list(window.tokens), list(window.positions)), dtype=np.float64))
            order = np.lexsort((np.broadcast_to(np.arange(VOCAB), truth.shape), -truth.astype(np.float32)), axis=1)[
                :, :20
            ]
            assert np.array_equal(rows.top_ids, order), (arm, window.window_id)
            assert np.allclose(rows.top_log_probs, np.take_along_axis(truth, order, axis=1), rtol=0, atol=1e-5)
            own = truth[np.arange(len(window.positions)), window.next_tokens]
            assert np.allclose(rows.next_token_log_prob, own, rtol=0, atol=1e-5)
        scores = read_parquet(outputs(tiny, arm, "scores")["rows-pl.parquet"])
        assert set(LIGHT_ROW_MEASURES) <= set(scores) and not {"kl_full", "entropy"} & set(scores)
        assert (scores["kl_top20"] > 0).all() and all(str(one).startswith("light:") for one in scores["raw_row_sha256"])
    summary = json.loads(outputs_of_study(tiny, "publication")["SUMMARY.json"].read_bytes())
    (pair,) = summary["comparisons"]
    apart = next(one for one in pair["figures"] if one["measure"] == "kl_pair20" and one["population"] == "all")
    assert apart["value"] > 0 and apart["verdict"] == "descriptive"
    assert "bit-identical" not in {one["verdict"] for one in pair["figures"]}, (
        "light rows never prove that raw rows are equal"
    )
    assert any("declare" in text and "engcmp launch diff" in text for text in pair["confounds"])
    proved = tiny.run("verify", TINY)
    assert proved.returncode == 0, proved.stdout


def test_a_panel_of_full_rows_is_refused_before_any_measurement_by_a_server_that_has_none(
    tmp_path: Path, measured_home: Path
) -> None:
    tiny = server_study(tmp_path, measured_home, light=True)
    path = tiny.folder / "protocol.toml"
    text = path.read_text(encoding="utf-8")
    light = re.compile(r'keep = "light"\n(rows = .*\n.*\n.*\n)measures = .*\nprimary = .*\npair_measures = .*\n')
    full = 'measures = ["kl_full"]\nprimary = ["kl_full"]\npair_measures = ["kl_pair_full"]\n'
    text, count = light.subn(lambda found: found[1] + full, text, count=1)
    assert count == 1
    path.write_text(text, encoding="utf-8")
    assert tiny.run("amend", TINY, "--because", "full rows").returncode == 0
    done = tiny.run("run", TINY)
    assert done.returncode == 1
    assert "wants full rows on the prefill path" in done.stderr and "keep = light" in done.stderr
    assert not list((tiny.home / "heads" / TINY).glob("*fork*/captured_rows/*")), "nothing was measured"
    assert list((tiny.home / "heads" / TINY).glob("*cuteafd*/captured_rows/*")), (
        "the other arm is measured all the same"
    )
    assert outputs_of_study(tiny, "publication")


def log_softmax(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    shifted = rows - rows.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def outputs_of_study(tiny: TinyStudy, artifact: str) -> dict[str, Path]:
    return outputs(tiny, "_study", artifact)
