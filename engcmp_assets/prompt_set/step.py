"""prompt_set: check the frozen token ids against their texts and digests, and lay them out as panels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engcmp_assets.kernel.names import LOAD_PLAN, PROMPTS
from engcmp_assets.kernel.panels import passes
from engcmp_assets.kernel.plots import bars
from engcmp_assets.kernel.prompt_files import all_windows, frozen_tokenizer, frozen_vocab, is_laid_out
from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.records import ArmKey, Check, Window
from engcmp_assets.kernel.reply_tables import REPLIES_PLAN_FILE
from engcmp_assets.kernel.source_outputs import one_tokenizer, tokenizer_outputs
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.tables import parquet_bytes
from engcmp_assets.kernel.throughput_tables import PLAN_FILE
from engcmp_assets.kernel.work import Made, Product, Step, Use, Work
from engcmp_assets.prompt_set.prompts import panel_document
from engcmp_assets.prompt_set.replies import replies_parameters, replies_products
from engcmp_assets.throughput_events.plan import index_bytes, parse_index
from engcmp_resources.canonical import canonical_bytes, sha256_bytes
from engcmp_resources.errors import EngcmpError
from engcmp_resources.tokenizing import TextTokenizer, load_tokenizer

COLUMNS = (
    Column("window_id", "str", "1", "Name of the window"),
    Column("block", "str", "1", "Content kind of the text"),
    Column("cluster", "str", "1", "Document that the window belongs to: the unit that is resampled"),
    Column("bucket", "str", "1", "Context bucket: the smallest standard length that holds the window"),
    Column("tokens", "int", "token", "Length of the window"),
    Column("rows", "int", "row", "Rows of the window that any panel keeps"),
    Column("tokens_sha256", "str", "1", "SHA-256 of the ids as little-endian unsigned 32-bit integers"),
)


def parameters(study: Study, _arm: ArmKey | None) -> Mapping[str, Any]:
    """The frozen ids and texts by hash, and what each panel keeps of them."""
    prompts = study.protocol.prompt_set
    texts = {name: sha256_bytes(data) for name, data in study.files.items() if name.startswith(f"{prompts.texts}/")}
    panels = {name: [plan.reference, plan.windows] for name, plan in study.protocol.panels.items()}
    found = {"prompt_set": sha256_bytes(study.files.get(prompts.file, b"")), "texts": texts, "panels": panels}
    found |= replies_parameters(study.protocol.long_replies, study.files)
    if study.protocol.throughput is None:
        return found
    plan = study.protocol.throughput.model_dump(mode="json")
    return found | {"throughput": plan, "throughput_plan": sha256_bytes(study.files.get(PLAN_FILE, b""))}


def make(work: Work) -> Made:
    """Tokenize the texts again and refuse ids that differ from the frozen ones."""
    study = work.study
    frozen = study.files.get(study.protocol.prompt_set.file, b"")
    if not frozen:
        raise EngcmpError(
            f"study {study.protocol.study} has no prompt set: nothing of it was here at the freeze", where=str(study.folder),
            remedy=f"`engcmp fetch {study.protocol.study}`, then `engcmp amend {study.protocol.study} --because WHY`",
        )  # fmt: skip
    panels = {
        name: study.panel(name)
        for name, plan in study.protocol.panels.items()
        if not plan.external or is_laid_out(frozen, name)
    }
    rows = {one.window_id: len(one.positions) for one in passes(list(panels.values()))}
    outside = outside_windows(study)
    windows = {window.window_id: window for panel in panels.values() for window in panel.windows}
    # A text that no panel keeps rows of is one all the same: the prompts of the speed block are made of it.
    windows |= {one.window_id: one for one in all_windows(frozen) if one.window_id not in windows}
    own = [one for name, one in windows.items() if name not in outside]
    load: list[Product] = []
    if own or study.protocol.throughput is not None or study.protocol.long_replies is not None:
        tokenizer = load_tokenizer(work.file("sources", one_tokenizer(study.protocol)))
        _refuse_other_ids(work, own, tokenizer)
        load = [
            *_load_plan(work, tokenizer),
            *_replies(study, tokenizer),
        ]
    table: dict[str, list[Any]] = {
        "window_id": list(windows),
        "block": [window.block for window in windows.values()],
        "cluster": [window.cluster for window in windows.values()],
        "bucket": [window.bucket for window in windows.values()],
        "tokens": [len(window.tokens) for window in windows.values()],
        "rows": [rows.get(name, 0) for name in windows],
        "tokens_sha256": [window.tokens_sha256 for window in windows.values()],
    }
    documents = [
        Product(f"{name}.json", "json", canonical_bytes(panel_document(entry)), rows=len(entry.windows))
        for name, entry in panels.items()
    ]
    count = len(windows)
    plot = bars("Windows of the prompt set", table["window_id"], table["tokens"], unit="tokens", groups=table["block"])
    return Made(
        products=[
            Product(PROMPTS, "json", frozen, rows=count),
            *documents,
            *load,
            Product("windows.parquet", "parquet", parquet_bytes(COLUMNS, table), rows=count, columns=COLUMNS),
            Product("plot.png", "png", plot, role="view"),
        ],
        checks=[
            Check("token_digests", True, f"All {count} windows match their digests", {"windows": count}),
            Check(
                "texts_tokenize_to_the_frozen_ids",
                True,
                "The model's own tokenizer gives the frozen ids, and they give the texts back",
                {"windows": count},
            ),
        ],
        details={
            "rows": {name: entry.rows for name, entry in panels.items()},
            "vocab": frozen_vocab(frozen),
            **({"tokenizer": told} if (told := frozen_tokenizer(frozen)) else {}),
            **({"windows_from_outside": sorted(outside)} if outside else {}),
        },
    )


def outside_windows(study: Study) -> set[str]:
    """The windows that come from a fetched data set: they have ids and no text here."""
    data = study.files.get(study.protocol.prompt_set.file, b"")
    own = [name for name, plan in study.protocol.panels.items() if plan.external and is_laid_out(data, name)]
    return {window.window_id for name in own for window in study.panel(name).windows}


def _replies(study: Study, tokenizer: TextTokenizer) -> list[Product]:
    if REPLIES_PLAN_FILE not in study.files and study.protocol.only_outside:
        return []  # as with the speed block
    return replies_products(study.protocol.long_replies, study.files, tokenizer, where=str(study.folder))


def _load_plan(work: Work, tokenizer: TextTokenizer) -> list[Product]:
    """The frozen index of the speed block's prompts, where the study has one. Raises EngcmpError where its table gives another one."""
    study = work.study
    if study.protocol.throughput is None:
        return []
    frozen = study.files.get(PLAN_FILE)
    if frozen is None and study.protocol.only_outside:
        return []  # it waited at the freeze, say for texts
    if frozen is None:
        raise EngcmpError(
            f"{PLAN_FILE} is missing", where=str(study.folder), remedy=f"`engcmp freeze {study.protocol.study}`"
        )
    prefix = study.protocol.startup.prefix if study.protocol.startup else None
    prompts = study.files[study.protocol.prompt_set.file]
    fresh = index_bytes(study.protocol.throughput, prompts, tokenizer, prefix=prefix)
    index = parse_index(frozen, where=str(study.folder / PLAN_FILE))
    if fresh != frozen:
        raise EngcmpError(
            f"the frozen {PLAN_FILE} is not what the tables [throughput] and [startup] and the prompt set give",
            where=str(study.folder / PLAN_FILE), remedy="restore it, or freeze the study anew",
        )  # fmt: skip
    return [Product(LOAD_PLAN, "json", frozen, rows=index.requests)]


def _refuse_other_ids(work: Work, windows: Sequence[Window], tokenizer: TextTokenizer) -> None:
    folder = work.study.protocol.prompt_set.texts
    for window in windows:
        name = f"{folder}/{window.window_id}.txt"
        if name not in work.study.files:
            raise EngcmpError(f"text {name} is missing", where=str(work.study.folder), remedy="restore it from git")
        text = work.study.files[name].decode("utf-8")
        ids = tokenizer.encode(text)
        if tokenizer.decode(ids) != text:
            raise EngcmpError(
                f"window {window.window_id}: the text does not come back from its token ids", where=name,
                remedy="leave out the characters that the vocabulary lacks",
            )  # fmt: skip
        if tuple(ids) != window.tokens:
            first = next(
                (i for i, (a, b) in enumerate(zip(ids, window.tokens, strict=False)) if a != b), len(window.tokens)
            )
            raise EngcmpError(
                f"window {window.window_id}: the text gives other token ids than the frozen ones, first at token {first}",
                where=name, remedy="restore the text, or freeze the study anew",
            )  # fmt: skip


STEP = Step(
    artifact="prompt_set",
    title="Prompt set",
    description=(
        "The token ids that every engine is given, made once from the study's texts and frozen, window by window. Engines get ids, "
        "never text, so no tokenizer or template can differ between them; the model's own tokenizer must still give the same ids."
    ),
    group="inputs",
    kinds=("json", "parquet"),
    version="1",
    uses=(
        Use("frozen_protocol", "study", ()),
        Use("sources", "arm", lambda study, _arm: tokenizer_outputs(study.protocol)),
    ),
    per_arm=True,
    parameters=parameters,
    make=make,
    columns=COLUMNS,
    checks={
        "token_digests": "The ids of every window have the digest that was frozen with them",
        "texts_tokenize_to_the_frozen_ids": "The model's own tokenizer gives the frozen ids for the texts",
    },
)
