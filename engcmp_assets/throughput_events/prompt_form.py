"""As what a launch is sent the plan's prompts: token ids where it takes them, else chats, as it was found to do."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engcmp_assets.engine_launch.served import Served
from engcmp_assets.kernel.source_outputs import one_tokenizer, tokenizer_outputs
from engcmp_assets.kernel.work import output_blob
from engcmp_assets.throughput_events.journalled import Speed
from engcmp_assets.throughput_events.plan import AsChats
from engcmp_resources.errors import EngcmpError
from engcmp_resources.load.control import Control
from engcmp_resources.load.streams import Address
from engcmp_resources.tokenizing import TextTokenizer, load_tokenizer


@dataclass(frozen=True, slots=True)
class PromptForm:
    """How prompts are sent to a launch: as chats, or as token ids where `chats` is None. `note` is what the record of a session keeps."""

    chats: AsChats | None = None
    note: Mapping[str, Any] = field(default_factory=dict)


def prompt_form(speed: Speed, serving: Served) -> PromptForm:
    """What the launch is sent. A study without a table [throughput.chat] sends token ids to every engine.

    Raises EngcmpError where the server answers neither token ids nor a chat.
    """
    asked = speed.plan.chat
    if asked is None:
        return PromptForm()
    why = "the protocol sends chats to every engine"
    if asked.to != "every engine":
        refused = Control(Address.parse(serving.endpoint.url), serving.endpoint.key).no_token_ids(
            serving.endpoint.model
        )
        if refused is None:
            return PromptForm(note={"prompts": {"sent_as": "token ids", "why": "the server takes them"}})
        why = f"the server takes no token ids: {refused}"
    return PromptForm(AsChats(asked, _vocabulary(speed)), {"prompts": {"sent_as": "chats", "why": why}})


def own_tokenizer(speed: Speed) -> Callable[[str], Sequence[int]] | None:
    """The checkpoint's tokenizer, read when it is first asked; None for an arm whose sources have no file that holds one."""
    sources = speed.work.session.sound("sources", speed.work.arm)
    name = next(iter(tokenizer_outputs(speed.work.study.protocol)), None)
    if sources is None or name not in {output["name"] for output in sources.receipt["outputs"]}:
        return None
    vocabulary = functools.cache(lambda: _vocabulary(speed))
    return lambda text: vocabulary().encode(text)


def _vocabulary(speed: Speed) -> TextTokenizer:
    """The tokenizer that the frozen texts come from."""
    work = speed.work
    sources = work.session.sound("sources", work.arm)
    if sources is None:
        raise EngcmpError(f"{work.arm} has no sources yet", remedy="materialize sources first")
    name = one_tokenizer(work.study.protocol)
    blob = output_blob(sources.receipt, name)
    if not work.store.holds(blob):
        raise EngcmpError(
            f"{name} is missing or was changed", where=str(work.store.path(blob)), remedy="materialize sources again"
        )
    return load_tokenizer(work.store.path(blob))
