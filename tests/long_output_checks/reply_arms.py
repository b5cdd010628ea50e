"""An arm's replies as the driver leaves them: replies.parquet, private texts and the plan; and a Work that reads them. No tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow.parquet as pq

from engcmp_assets.kernel.names import REPLIES_PLAN
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.reply_plan import Asked
from engcmp_assets.kernel.reply_records import ReplyRecord, ReplyText, replies_table
from engcmp_assets.kernel.task_checks.code_tasks import CodeTask, load_code_tasks
from engcmp_assets.kernel.tool_calling.builtin import SUITE, VERSION
from engcmp_assets.kernel.work import Work
from engcmp_resources import private_store
from engcmp_resources.canonical import canonical_bytes, sha256_of
from engcmp_resources.reply_files import ReplyTokenizer

CODE_TASKS: dict[str, CodeTask] = {
    one.name: one for one in load_code_tasks(Path(__file__).resolve().parents[2] / "protocol" / "_tasks" / "code")
}
ARM = ArmKey.parse("q4_0/llamacpp@b11549")
STUDY = "smollm2-replies"


@dataclass
class ReplyArm:
    """Replies are added one by one; `work` then stands for the work of the step: same methods, no receipts."""

    home: Path
    tokenizer_file: Path
    records: list[ReplyRecord] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def add(
        self,
        block: str,
        item: str,
        reasoning: str = "",
        answer: str = "",
        *,
        finish_reason: str | None = "stop",
        expected: dict[str, Any] | None = None,
        ids: Sequence[int] | None = None,
        turns: Sequence[Any] | None = None,
        keep: bool = True,
        scenario: str | None = None,
        **more: Any,
    ) -> ReplyRecord:
        """A reply; `keep` False is one that failed before any text."""
        stage = more.pop("stage", block if block != "long" else "L1")
        repeat, number = more.pop("repeat", 1), len(self.records)
        task_sha256 = CODE_TASKS[item].sha256 if block == "code" else None
        name = f"{stage}/{item}/{repeat}"
        text = ReplyText(
            name,
            reasoning,
            answer,
            None if ids is None else tuple(ids),
            "0" * 64,
            turns=None if turns is None else tuple(turns),
        )
        asked: dict[str, Any] = (
            {"scenario": scenario, "task_sha256": None}
            if scenario
            else {"messages": [{"role": "user", "content": "x"}]}
        )
        record = ReplyRecord(
            name, cast(Any, block), stage, more.pop("kind", "prose"), item, repeat, seed=more.pop("seed", number),
            prompt_sha256=sha256_of(asked),
            prompt_tokens=9, cap_tokens=more.pop("cap_tokens", 256), status="ok", cause=None, finish_reason=finish_reason, n_tokens=None,
            n_reasoning_tokens=None, n_answer_tokens=None, reasoning_chars=len(reasoning), answer_chars=len(answer),
            text_sha256=text.text_sha256 if keep else None, token_ids_sha256=text.token_ids_sha256,
            private_sha256=private_store.write(self.home, text.as_json()) if keep else None, started_at_ns=number, done_at_ns=number + 5,
            ttft_ns=1, start=1,
        )  # fmt: skip
        record = replace(record, **more)
        self.records.append(record)
        self.asked.append(
            {
                "reply_id": name, "block": block, "stage": stage, "kind": record.kind, "item": item, "repeat": repeat, "seed": record.seed,
                "cap_tokens": record.cap_tokens, "concurrency": 1, "prompt_sha256": record.prompt_sha256, "task_sha256": task_sha256,
                "expected": expected or {},
            }
            | ({"scenario": scenario} if scenario else {"messages": [{"role": "user", "content": "x"}]})
        )  # fmt: skip
        return record

    def code(self, task: str, answer: str, **more: Any) -> ReplyRecord:
        return self.add("code", task, "", answer, kind="code", expected={"task": task}, **more)

    def tools(self, scenario: str, turns: Sequence[Any], **more: Any) -> ReplyRecord:
        wanted = {"suite": SUITE, "version": VERSION}
        return self.add("tools", scenario, turns=turns, scenario=scenario, stage="tools-c1", expected=wanted, **more)

    def work(self) -> Work:
        files = {
            "replies.parquet": self.home / "replies.parquet", REPLIES_PLAN: self.home / REPLIES_PLAN,
            f"{ARM.checkpoint}.gguf": self.tokenizer_file,
        }  # fmt: skip
        pq.write_table(replies_table(self.records), files["replies.parquet"])
        document = {"schema": "engcmp.replies-asked/1", "replies": self.asked}
        asked = Asked.model_validate(document).model_dump(mode="json", by_alias=True)
        files[REPLIES_PLAN].write_bytes(canonical_bytes(asked))
        statistics = SimpleNamespace(replicates=200, seed=1, level=0.95)
        named = SimpleNamespace(tokenizer=None)  # the checkpoint's own, a file that was made
        protocol = SimpleNamespace(
            study=STUDY, statistics=statistics, prompt_set=named, checkpoint_of=lambda _arm: None
        )
        made = SimpleNamespace(
            arm=ARM, study=SimpleNamespace(protocol=protocol), store=SimpleNamespace(home=self.home),
            file=lambda _artifact, name, _arm=None: files[name], say=self.said.append,
        )  # fmt: skip
        return cast(Work, made)


def encoded(tokenizer: ReplyTokenizer, *texts: str) -> list[int]:
    return [number for text in texts for number in tokenizer.encode(text)]
