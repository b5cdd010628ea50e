"""`engcmp freeze`: tokenize the texts once, and write FROZEN.json."""

from __future__ import annotations

from pathlib import Path

import click

from engcmp_assets.frozen_protocol.conformance import conformance_values, frozen_versions
from engcmp_assets.frozen_protocol.freezing import frozen_document
from engcmp_assets.kernel.names import PANEL
from engcmp_assets.kernel.progress import stderr_line
from engcmp_assets.kernel.study import Study, load_study
from engcmp_assets.prompt_set.prompts import prompt_document
from engcmp_assets.sources.step import fetched_weights
from engcmp_resources.canonical import canonical_bytes
from engcmp_resources.disk import write_whole
from engcmp_resources.errors import EngcmpError
from engcmp_resources.gguf_files import open_gguf
from engcmp_resources.places import FROZEN_FILE, home_folder
from engcmp_resources.store import Store
from engcmp_resources.tokenizing import GgufTokenizer


@click.command(epilog="Example: engcmp freeze smollm2-cpu")
@click.argument("study")
def freeze(study: str) -> None:
    """Freeze STUDY: make its prompt set from the texts, and write the hash of every protocol file and measure.

    A study that was frozen and measured gets a new frozen hash; its results stay and belong to the old one.
    """
    loaded = load_study(study)
    prompts = loaded.folder / loaded.protocol.prompt_set.file
    _replace(prompts, prompt_set_bytes(loaded, Store(home_folder())))
    loaded = load_study(study)
    loaded.panel(PANEL)  # what is frozen must be readable
    document = frozen_document(study, loaded.files, frozen_versions(), conformance_values())
    _replace(loaded.folder / FROZEN_FILE, canonical_bytes(document))
    click.echo(f"{study}: {len(document['files'])} files frozen as {document['frozen_sha256']}")


def prompt_set_bytes(study: Study, store: Store) -> bytes:
    """The prompt set of the study's texts. Raises EngcmpError for a text that does not survive tokenizing."""
    folder = f"{study.protocol.prompt_set.texts}/"
    texts = {name: _text(study, name) for name in study.files if name.startswith(folder)}
    if not texts:
        raise EngcmpError(
            "no texts to tokenize", where=str(study.folder / folder), remedy="put one .txt file a window there"
        )
    with open_gguf(store.path(fetched_weights(study, store, stderr_line))) as model:
        tokenizer = GgufTokenizer.from_model(model)
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
    plan = study.protocol.panel_plan(PANEL)
    return canonical_bytes(
        prompt_document(tokens, vocab=tokenizer.vocab, rows_per_window=plan.rows_per_window, role=plan.roles[0])
    )


def _text(study: Study, name: str) -> str:
    try:
        return study.files[name].decode("utf-8")
    except UnicodeDecodeError as error:
        raise EngcmpError(
            f"text is not UTF-8: {error.reason} at byte {error.start}",
            where=str(study.folder / name),
            remedy="save it as UTF-8",
        ) from error


def _replace(path: Path, data: bytes) -> None:
    # A name with a dot in front is no file of the study, should a kill leave it.
    write_whole(path, data, temporary=path.with_name(f".{path.name}.partial"), mode=0o644)
