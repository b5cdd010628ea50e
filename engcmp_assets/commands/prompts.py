"""`engcmp prompts`: build a study's prompt set apart from the network, every file of it listed by its SHA-256."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from engcmp_assets.commands.paths import PathArgument
from engcmp_assets.kernel.external_panels import ExternalPanel
from engcmp_assets.kernel.progress import stderr_line
from engcmp_assets.kernel.prompt_files import parse_panel
from engcmp_assets.kernel.study import Study, load_study
from engcmp_assets.kernel.throughput_tables import PLAN_FILE
from engcmp_assets.prompt_set.building import MANIFEST, built_files
from engcmp_assets.prompt_set.making import maker_of, planned_files, prompt_set_bytes, tokenizer_file, waits
from engcmp_assets.prompt_set.outside import outside_panels, source_folder
from engcmp_assets.sources.published import fetched_folder
from engcmp_assets.throughput_events.plan import parse_index, prompt_ids, texts_by_kind
from engcmp_resources.canonical import sha256_bytes
from engcmp_resources.disk import make_folder, replace_visible
from engcmp_resources.errors import EngcmpError
from engcmp_resources.fetching.mirror import STAND_IN
from engcmp_resources.places import CHECKOUT, home_folder, protocol_root
from engcmp_resources.sandbox.records import NoSandboxError
from engcmp_resources.store import Store

_DEADLINE_S = 1800.0
_INTERFACES = Path("/proc/net/dev")


@click.command(epilog="Example: engcmp prompts smollm2-cpu --out prompts/")
@click.argument("study")
@click.option("--out", required=True, type=PathArgument(), help="Folder for the files; it must be empty or new.")
@click.option(
    "--python",
    type=PathArgument(),
    default=sys.executable,
    show_default="this one",
    help="The Python that builds; it needs engcmp's packages.",
)
@click.option("--tokenizer", hidden=True, type=PathArgument())
def prompts(study: str, out: Path, python: Path, tokenizer: Path | None) -> None:
    """Build the prompt set of STUDY in a process that has no network: token ids of every window and prompt, plans, and a review of them.

    The same study gives the same bytes. What is built here must be what was frozen.
    """
    if tokenizer is not None:
        _build(load_study(study), out, tokenizer)
        return
    if out.exists() and any(out.iterdir()):
        raise EngcmpError("the folder is not empty", where=str(out), remedy="name another one")
    make_folder(out)
    path = tokenizer_file(load_study(study), Store(home_folder()), stderr_line)
    if path is None:
        raise EngcmpError(
            f"study {study} has no tokenizer to build a prompt set with", where="protocol field prompt_set",
            remedy="write tokenizer = SOURCE, a source that holds the model's tokenizer.json",
        )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="engcmp-prompts-") as scratch:
        command = [*apart(out.absolute(), Path(scratch)), str(python), "-m", "engcmp_assets.commands", "prompts", study]
        command += ["--out", str(out.absolute()), "--tokenizer", str(path)]
        own = {"TMPDIR": scratch, "MPLCONFIGDIR": scratch, "PYTHONDONTWRITEBYTECODE": "1"}
        variables = os.environ | own | {"ENGCMP_PROTOCOL": str(protocol_root())}
        done = subprocess.run(
            command, cwd=CHECKOUT, env=variables, capture_output=True, text=True, check=False, timeout=_DEADLINE_S
        )
    if done.returncode != 0 or not (out / MANIFEST).is_file():
        said = " ".join((done.stderr or done.stdout).split())[-500:].removeprefix("engcmp: ")
        said = (
            said
            or f"{python} ended with {done.returncode} and said nothing: is it a Python that has engcmp's packages?"
        )
        raise EngcmpError(
            f"the prompt set was not built: {said}", where=str(out), remedy="mend what it names and start again"
        )
    manifest = (out / MANIFEST).read_bytes()
    click.echo(f"{study}: {len(list(out.rglob('*.json')))} files in {out}, {MANIFEST} {sha256_bytes(manifest)}")


def apart(*writable: Path) -> list[str]:
    """What runs a command with no network, all of the disk to be read and only these folders to be written. Raises NoSandboxError."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise NoSandboxError("bubblewrap is not installed", remedy="install the package bubblewrap (Linux)")
    command = [bwrap, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/run"]
    for folder in writable:
        command += ["--bind", str(folder), str(folder)]
    return [*command, "--unshare-net", "--unshare-ipc", "--unshare-pid", "--die-with-parent", "--new-session"]


def _build(study: Study, out: Path, tokenizer: Path) -> None:
    """Within the child: everything of the prompt set, from the study's folder and the tokenizer."""
    _refuse_network()
    base, maker = study.base, maker_of(study, tokenizer)
    prompt_set = prompt_set_bytes(study, maker)
    planned = {name: data for name, data in planned_files(study, maker, prompt_set).items() if data is not None}
    frozen = {base.prompt_set.file: prompt_set} | planned
    requests: list[tuple[str, int, list[int]]] = []
    if PLAN_FILE in frozen:
        texts = texts_by_kind(prompt_set)
        for cell in parse_index(frozen[PLAN_FILE], where=PLAN_FILE).cells:
            for one in (*cell.warmup, *cell.requests):
                ids = prompt_ids(one.first_line, one.offset, texts[cell.kind], cell.prompt_tokens)
                requests.append((one.request_id, cell.prompt_tokens, ids))
    _refuse_other_than_frozen(study, frozen)
    outside = outside_panels(base, fetched_folder(study))
    panels = [
        parse_panel(prompt_set, base, panel=name, where=str(out))
        for name, plan in base.panels.items()
        if not plan.external or name in outside
    ]
    words = {name: data.decode("utf-8") for name, data in study.files.items() if name.endswith(".txt")}
    told = from_outside(study, outside)
    files = built_files(
        base, frozen=frozen, panels=panels, texts=words, prompts=requests, outside=told, tokenizer=maker.record, waiting=waits(study, maker)
    )  # fmt: skip
    for name, data in files.items():
        make_folder((out / name).parent)
        replace_visible(out / name, data)


def from_outside(study: Study, panels: Mapping[str, ExternalPanel]) -> dict[str, dict[str, Any]]:
    """What each panel from outside was laid out from: the source and its pin, and whether it is a stand-in, by a file STAND-IN in it."""
    found = {}
    for name, plan in panels.items():
        folder = source_folder(study.base, plan, fetched_folder(study))
        told = folder / STAND_IN
        stand_in = told.read_text(encoding="utf-8").strip() if told.is_file() else None
        found[name] = {"source": folder.name, "drawn_from": plan.drawn_from, "stand_in": stand_in or False}
    return found


def _refuse_network() -> None:
    """Raise EngcmpError where this process could reach any network: a prompt set that depends on one is none."""
    names = {line.partition(":")[0].strip() for line in _INTERFACES.read_text().splitlines()[2:]}
    if names - {"lo"}:
        raise EngcmpError(
            f"this process has a network ({', '.join(sorted(names - {'lo'}))})",
            remedy="`engcmp prompts` starts it without one",
        )


def _refuse_other_than_frozen(study: Study, built: dict[str, bytes]) -> None:
    files = (study.frozen or {}).get("files", {})
    for name, data in built.items():
        if name in files and files[name] != sha256_bytes(data):
            raise EngcmpError(
                f"{name} comes out as another file than the frozen one",
                where=str(study.folder),
                remedy="restore the texts and the code",
            )
