"""The prompt set of a study's folder: whose tokenizer makes it, the texts that are tokenized, and what waits for what is not here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engcmp_assets.kernel.progress import Say
from engcmp_assets.kernel.protocol import Protocol
from engcmp_assets.kernel.reply_plan import index_bytes as replies_index_bytes
from engcmp_assets.kernel.reply_tables import REPLIES_PLAN_FILE
from engcmp_assets.kernel.source_outputs import reference_outputs
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.throughput_tables import PLAN_FILE
from engcmp_assets.prompt_set.outside import outside_panels, waiting_panels, with_outside
from engcmp_assets.prompt_set.prompts import SCHEMA, prompt_document
from engcmp_assets.prompt_set.replies import study_replies
from engcmp_assets.sources.published import fetched_folder, listed_source, stand_in_of, tokenizer_path
from engcmp_assets.sources.step import fetched_weights
from engcmp_assets.throughput_events.plan import index_bytes
from engcmp_resources.canonical import canonical_bytes, sha256_file
from engcmp_resources.errors import EngcmpError
from engcmp_resources.store import Store
from engcmp_resources.tokenizing import TextTokenizer, load_tokenizer


@dataclass(frozen=True)
class Maker:
    """Whose tokenizer a prompt set is made with: `path` of its file, and what is frozen of it (None: it is that of the weights)."""

    path: Path
    tokenizer: TextTokenizer
    record: Mapping[str, Any] | None


def maker_of(study: Study, path: Path) -> Maker:
    """The tokenizer at `path`, as the one that the protocol names or that of the weights."""
    name = study.base.prompt_set.tokenizer
    if name is None:
        return Maker(path, load_tokenizer(path), None)
    entry = listed_source(study, name)
    record = {"source": entry.id, "sha256": sha256_file(path), "stand_in": stand_in_of(study, entry) or False}
    return Maker(path, load_tokenizer(path), record)


def tokenizer_file(study: Study, store: Store, say: Say) -> Path | None:
    """The study's tokenizer, fetched where it is not here; None for a study that names none and whose reference was published.

    Raises EngcmpError for one that cannot be had.
    """
    name = study.base.prompt_set.tokenizer
    if name is not None:
        return tokenizer_path(study, name, say)
    return store.path(fetched_weights(study, store, say)) if reference_outputs(study.base) else None


def waits(study: Study, maker: Maker | None) -> list[str]:
    """What of a study with nothing but panels from outside cannot be made yet, a line each with the reason."""
    lines = [f"panel {name} waits: {why}" for name, why in waiting_panels(study.base, fetched_folder(study)).items()]
    for what, lacking in (
        ("the speed block", lacking_for_speed(study, maker)),
        ("long replies", lacking_for_replies(study, maker)),
    ):
        if lacking is not None:
            lines.append(f"{what} wait: {lacking}" if what.endswith("s") else f"{what} waits: {lacking}")
    return lines


def lacking_for_speed(study: Study, maker: Maker | None) -> str | None:
    """What the plan of the speed block lacks; None where it can be made, or none is asked."""
    plan = study.base.throughput
    if plan is None:
        return None
    if maker is None:
        return "no tokenizer is here to cut prompts to their lengths"
    folder = f"{study.base.prompt_set.texts}/"
    kinds = {Path(name).stem.rsplit("-", 1)[0] for name in study.files if name.startswith(folder)}
    if missing := [kind for kind in plan.kinds if kind not in kinds]:
        return f"{folder} has no text of kind {', '.join(missing)}"
    return None


def lacking_for_replies(study: Study, maker: Maker | None) -> str | None:
    """What the plan of long replies lacks; None where it can be made, or none is asked."""
    plan = study.base.long_replies
    if plan is None:
        return None
    if maker is None:
        return "no tokenizer is here to count prompts with"
    if not any(name.startswith(f"{plan.prompts}/") for name in study.files):
        return f"{plan.prompts}/ has no prompt"
    return None


def prompt_set_bytes(study: Study, maker: Maker | None) -> bytes:
    """The prompt set: windows of the study's texts, and of the panels from outside that are here.

    Raises EngcmpError for a study that needs texts and has none, a text that does not survive tokenizing, and a tokenizer with more ids
    than a row of the panels has.
    """
    tokens = _texts(study, maker.tokenizer) if maker is not None else {}
    if not tokens and not study.base.only_outside:
        raise EngcmpError(
            "no texts to tokenize", where=str(study.folder / study.base.prompt_set.texts), remedy="put one .txt file a window there"
        )  # fmt: skip
    vocab = _vocab(study.base, maker)
    document = prompt_document(tokens, study.base, vocab=vocab) if tokens else {"windows": [], "panels": {}}
    document = with_outside(document | {"schema": SCHEMA, "vocab": vocab}, study.base, fetched_folder(study))
    if maker is not None and maker.record is not None:
        document["tokenizer"] = dict(maker.record)
    return canonical_bytes(document)


def planned_files(study: Study, maker: Maker | None, prompt_set: bytes) -> dict[str, bytes | None]:
    """The indices of the blocks with requests, by file; None for one that the study does not have, or that waits."""
    base = study.base
    found: dict[str, bytes | None] = {PLAN_FILE: None, REPLIES_PLAN_FILE: None}
    if maker is None:
        return found
    if base.throughput is not None and not (base.only_outside and lacking_for_speed(study, maker)):
        prefix = base.startup.prefix if base.startup else None
        found[PLAN_FILE] = index_bytes(base.throughput, prompt_set, maker.tokenizer, prefix=prefix)
    if base.long_replies is not None and not (base.only_outside and lacking_for_replies(study, maker)):
        found[REPLIES_PLAN_FILE] = replies_index_bytes(study_replies(base.long_replies, study.files, maker.tokenizer))
    return found


def has_anything(study: Study, maker: Maker | None) -> bool:
    """Whether there is a window to lay out: of a text, or of a panel from outside that is here."""
    texts = any(name.startswith(f"{study.base.prompt_set.texts}/") for name in study.files)
    return bool(outside_panels(study.base, fetched_folder(study))) or (maker is not None and texts)


def _vocab(base: Protocol, maker: Maker | None) -> int:
    """The width of a row: the panels from outside say it; else it is the tokenizer's."""
    stated = {plan.external.vocab for plan in base.panels.values() if plan.external}
    if not stated:
        if maker is None:
            raise EngcmpError("there is no tokenizer", where=f"study {base.study}", remedy="name one in [prompt_set]")
        return maker.tokenizer.vocab
    vocab = min(stated)
    if maker is not None and maker.tokenizer.vocab > vocab:
        raise EngcmpError(
            f"the tokenizer has {maker.tokenizer.vocab:,} ids, a row of the panels {vocab:,} values", where=str(maker.path),
            remedy="name the tokenizer of the model that the panels are of",
        )  # fmt: skip
    return vocab


def _texts(study: Study, tokenizer: TextTokenizer) -> dict[str, list[int]]:
    folder = f"{study.base.prompt_set.texts}/"
    tokens = {}
    for name in study.files:
        if not name.startswith(folder):
            continue
        text = _text(study, name)
        ids = tokenizer.encode(text)
        if tokenizer.decode(ids) != text:
            raise EngcmpError(
                "text does not come back from its token ids",
                where=str(study.folder / name),
                remedy="leave out the characters that the vocabulary lacks",
            )
        tokens[name.removeprefix(folder).removesuffix(".txt")] = ids
    return tokens


def _text(study: Study, name: str) -> str:
    try:
        return study.files[name].decode("utf-8")
    except UnicodeDecodeError as error:
        raise EngcmpError(
            f"text is not UTF-8: {error.reason} at byte {error.start}",
            where=str(study.folder / name),
            remedy="save it as UTF-8",
        ) from error
