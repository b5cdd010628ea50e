"""`engcmp freeze` and `engcmp amend`: tokenize the texts, and write FROZEN.json."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click

from engcmp_assets.frozen_protocol.conformance import frozen_values, frozen_versions
from engcmp_assets.frozen_protocol.engine_settings import refuse_unknown_engines
from engcmp_assets.frozen_protocol.freezing import frozen_differences, frozen_document
from engcmp_assets.frozen_protocol.iteration_freeze import freeze_iteration, stranded
from engcmp_assets.kernel.progress import stderr_line
from engcmp_assets.kernel.protocol import PROTOCOL_FILE
from engcmp_assets.kernel.study import Study, load_study
from engcmp_assets.kernel.throughput_tables import PLAN_FILE
from engcmp_assets.prompt_set.prompts import prompt_document
from engcmp_assets.sources.step import fetched_weights
from engcmp_assets.throughput_events.plan import index_bytes
from engcmp_resources.canonical import canonical_bytes
from engcmp_resources.disk import replace_visible
from engcmp_resources.errors import EngcmpError
from engcmp_resources.gguf_files import open_gguf
from engcmp_resources.places import FROZEN_FILE, ITERATIONS, home_folder
from engcmp_resources.store import Store
from engcmp_resources.tokenizing import GgufTokenizer


@click.command(epilog="Example: engcmp freeze smollm2-cpu")
@click.argument("study")
@click.option(
    "--iteration", help="Freeze only iterations/NAME.toml, which adds to a frozen study and changes nothing of it."
)
def freeze(study: str, iteration: str | None) -> None:
    """Freeze STUDY for the first time: make its prompt set from the texts, and write the hash of every protocol file and measure."""
    if iteration is not None:
        click.echo(freeze_iteration(load_study(study), iteration))
        return
    loaded = _frozen_part(study)
    if loaded.frozen is not None:
        changed = [what for _, what in frozen_differences(loaded.files, loaded.frozen)]
        if not changed:
            click.echo(f"{study}: frozen already as {loaded.frozen_sha256}, nothing has changed since")
            return
        raise EngcmpError(
            f"study {study} was frozen before: {changed[0]}", where=str(loaded.folder / FROZEN_FILE),
            remedy=f"restore it, or `engcmp amend {study} --because WHY`; a new arm needs no amendment but an iteration",
        )  # fmt: skip
    _write_freeze(_with_prompts(loaded), amendments=[])


@click.command(epilog='Example: engcmp amend smollm2-cpu --because "a fourth block, asked for in review"')
@click.argument("study")
@click.option("--because", required=True, help="Why the frozen protocol changes; it is kept in FROZEN.json.")
def amend(study: str, because: str) -> None:
    """Freeze STUDY anew under another hash, with the reason and the hash it had. Results made before belong to the old hash."""
    loaded = _frozen_part(study)
    if loaded.frozen is None:
        raise EngcmpError(
            f"study {study} was never frozen", where=str(loaded.folder), remedy=f"`engcmp freeze {study}`"
        )
    if not because.strip():
        raise click.UsageError("--because needs a reason")
    amended = _with_prompts(loaded)
    if _is_unchanged(amended, loaded.frozen):
        click.echo(f"{study}: nothing has changed since {loaded.frozen_sha256} was frozen; it stays")
        return
    entry = {
        "from": loaded.frozen_sha256,
        "because": because,
        "changed": [what for _, what in frozen_differences(amended.files, loaded.frozen)],
        "amended_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    _write_freeze(amended, amendments=[*loaded.frozen.get("amendments", []), entry])
    click.echo(
        f"Before it was {loaded.frozen_sha256}: results made under that are none of this. Make them anew: engcmp run {study}"
    )


def _is_unchanged(study: Study, frozen: Mapping[str, Any]) -> bool:
    """Whether a freeze made now would differ from `frozen` in nothing but its amendments."""
    now = frozen_document(study.folder.name, study.files, *_covered(study))
    return all(now[part] == frozen.get(part) for part in ("files", "versions", "conformance"))


def _frozen_part(study: str) -> Study:
    """The study without its iterations: they extend the freeze that is made here, or the one before it."""
    return replace(load_study(study), iteration_files={})


def _with_prompts(loaded: Study) -> Study:
    """The study with the prompt set of its texts. What is to be frozen must be readable."""
    refuse_unknown_engines(loaded.base, where=str(loaded.folder / PROTOCOL_FILE))
    prompts = loaded.folder / loaded.base.prompt_set.file
    tokenizer = _tokenizer(loaded, Store(home_folder()))
    replace_visible(prompts, prompt_set_bytes(loaded, tokenizer))
    index = loaded.folder / PLAN_FILE
    if loaded.base.throughput is None:
        index.unlink(missing_ok=True)
    else:
        replace_visible(index, index_bytes(loaded.base.throughput, prompts.read_bytes(), tokenizer))
    study = _frozen_part(loaded.folder.name)
    for name in study.base.panels:
        study.panel(name)
    return study


def _covered(study: Study) -> tuple[dict[str, dict[str, Any]], dict[str, float]]:
    """What the freeze covers beside the files: versions, and values on the conformance vector."""
    return frozen_versions(study.base), frozen_values(study.base)


def _write_freeze(study: Study, *, amendments: list[dict[str, Any]]) -> None:
    name = study.folder.name
    document = frozen_document(name, study.files, *_covered(study), amendments)
    replace_visible(study.folder / FROZEN_FILE, canonical_bytes(document))
    click.echo(f"{name}: {len(document['files'])} files frozen as {document['frozen_sha256']}")
    for iteration in stranded(load_study(name)):
        click.echo(
            f"Iteration {iteration} extends another freeze and must be looked at: engcmp freeze {name} --iteration {iteration}, "
            f"or remove its files in {study.folder / ITERATIONS}"
        )


def _tokenizer(study: Study, store: Store) -> GgufTokenizer:
    with open_gguf(store.path(fetched_weights(study, store, stderr_line))) as model:
        return GgufTokenizer.from_model(model)


def prompt_set_bytes(study: Study, tokenizer: GgufTokenizer) -> bytes:
    """The prompt set of the study's texts. Raises EngcmpError for a text that does not survive tokenizing."""
    folder = f"{study.base.prompt_set.texts}/"
    texts = {name: _text(study, name) for name in study.files if name.startswith(folder)}
    if not texts:
        raise EngcmpError(
            "no texts to tokenize", where=str(study.folder / folder), remedy="put one .txt file a window there"
        )
    tokens = {}
    for name, text in texts.items():
        ids = tokenizer.encode(text)
        if tokenizer.decode(ids) != text:
            raise EngcmpError(
                "text does not come back from its token ids",
                where=str(study.folder / name),
                remedy="leave out the characters that the vocabulary lacks",
            )
        tokens[name.removeprefix(folder).removesuffix(".txt")] = ids
    return canonical_bytes(prompt_document(tokens, study.base, vocab=tokenizer.vocab))


def _text(study: Study, name: str) -> str:
    try:
        return study.files[name].decode("utf-8")
    except UnicodeDecodeError as error:
        raise EngcmpError(
            f"text is not UTF-8: {error.reason} at byte {error.start}",
            where=str(study.folder / name),
            remedy="save it as UTF-8",
        ) from error
