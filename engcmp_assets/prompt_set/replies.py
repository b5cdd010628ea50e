"""The replies that a study asks for as part of its prompt set: the whole plan laid out, held against its frozen index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engcmp_assets.kernel.names import REPLIES_PLAN
from engcmp_assets.kernel.reply_plan import Asked, Vocabulary, asked_bytes, asked_replies, index_bytes
from engcmp_assets.kernel.reply_tables import REPLIES_PLAN_FILE, ReplyPlan
from engcmp_assets.kernel.task_checks.code_tasks import load_code_tasks
from engcmp_assets.kernel.work import Product
from engcmp_resources.canonical import sha256_bytes
from engcmp_resources.errors import EngcmpError
from engcmp_resources.places import named_folder

CODE_TASKS = "protocol/_tasks/code"


def study_replies(plan: ReplyPlan, files: Mapping[str, bytes], vocabulary: Vocabulary) -> Asked:
    """The whole plan of a study whose folder holds `files`. Raises EngcmpError as `asked_replies`."""
    code = load_code_tasks(named_folder(CODE_TASKS)) if plan.tasks.code else ()
    return asked_replies(plan, files, vocabulary, code)


def replies_parameters(plan: ReplyPlan | None, files: Mapping[str, bytes]) -> dict[str, Any]:
    """What the prompt set depends on: the table, its texts and the frozen index, by hash. Empty in a study without replies."""
    if plan is None:
        return {}
    texts = {name: sha256_bytes(data) for name, data in files.items() if name.startswith(f"{plan.prompts}/")}
    return {
        "long_replies": plan.model_dump(mode="json", by_alias=True),
        "reply_prompts": texts,
        "replies_plan": sha256_bytes(files.get(REPLIES_PLAN_FILE, b"")),
    }


def replies_products(
    plan: ReplyPlan | None, files: Mapping[str, bytes], vocabulary: Vocabulary, *, where: str
) -> list[Product]:
    """The whole plan as an output. Raises EngcmpError where the table, texts and tasks give another index than the frozen one."""
    if plan is None:
        return []
    frozen = files.get(REPLIES_PLAN_FILE)
    if frozen is None:
        raise EngcmpError(f"{REPLIES_PLAN_FILE} is missing", where=where, remedy="freeze the study anew")
    asked = study_replies(plan, files, vocabulary)
    if index_bytes(asked) != frozen:
        raise EngcmpError(
            f"the frozen {REPLIES_PLAN_FILE} is not what the table [long_replies], its texts and the tasks give", where=where,
            remedy="restore them, or freeze the study anew",
        )  # fmt: skip
    return [Product(REPLIES_PLAN, "json", asked_bytes(asked), rows=len(asked.replies))]
