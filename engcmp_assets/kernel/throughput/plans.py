"""The plan of Block T: which requests, with which prompts, seeds and lengths, at which width (issue of Block T; MEASURES section 6)."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from engcmp_assets.kernel.fields import Strict
from engcmp_resources.canonical import canonical_bytes, parse_json, sha256_bytes, sha256_of
from engcmp_resources.errors import EngcmpError

# No control characters and no marks that turn the direction of text: names are printed.
Text = Annotated[
    str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]*$")
]
Count = Annotated[int, Field(ge=1, lt=2**31, strict=True)]
Width = Annotated[int, Field(ge=1, le=4096, strict=True)]
Number = Annotated[int, Field(gt=-(2**63), lt=2**63, strict=True)]
# What the driver sets itself; a server's default is used for none of them.
_OURS = ("model", "messages", "prompt", "max_tokens", "max_completion_tokens", "seed", "stream", "stream_options", "n", "echo",
         "return_token_ids", "timings_per_token")  # fmt: skip
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_EXPLICIT = {"temperature": 0.0, "top_p": 1.0}
_WARM_UP_TOKENS = 16
_NONCE_DIGITS = 16


class PlanRequest(Strict):
    """One request. Exactly one of `messages` (a chat), `prompt` and `token_ids` (a completion) is given.

    `expected_prompt_tokens` is what this engine must count, None where it is not known; `batch` groups requests that depend on each
    other, for intervals.
    """

    request_id: Text
    messages: tuple[dict[str, Any], ...] | None = None
    prompt: str | None = None
    token_ids: tuple[Annotated[int, Field(ge=0, lt=2**31, strict=True)], ...] | None = None
    max_tokens: Count
    seed: Number | None = None
    expected_prompt_tokens: Count | None = None
    batch: Number | None = None

    @model_validator(mode="after")
    def _one_prompt(self) -> PlanRequest:
        given = [one for one in (self.messages, self.prompt, self.token_ids) if one is not None]
        if len(given) != 1 or not given[0]:
            raise ValueError("give one of messages, prompt and token_ids, not empty")
        return self

    @property
    def content(self) -> dict[str, Any]:
        """The prompt as it stands in the request's body."""
        if self.messages is not None:
            return {"messages": list(self.messages)}
        return {"prompt": self.prompt if self.prompt is not None else list(self.token_ids or ())}

    @property
    def path(self) -> str:
        return COMPLETIONS if self.messages is None else CHAT

    @property
    def prompt_sha256(self) -> str:
        """Digest of the prompt: SHA-256 of the canonical JSON of `content`."""
        return sha256_of(self.content)


class PlanCell(Strict):
    """Requests of one kind of content at one width. Without `rate_per_s` a closed loop: `concurrency` at a time.

    With it an open loop: requests go out at that rate whatever comes back, at gaps drawn by `arrival` and `arrival_seed`.
    `warmup` are requests that are sent before, untimed.
    """

    cell_id: Text
    kind: Text
    concurrency: Width
    requests: Annotated[tuple[PlanRequest, ...], Field(min_length=1)]
    repeat: Number | None = None
    rate_per_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    arrival: Literal["poisson", "constant"] = "poisson"
    arrival_seed: Annotated[int, Field(ge=0, lt=2**64, strict=True)] = 0
    warmup: tuple[PlanRequest, ...] | None = None


class Plan(Strict):
    """All cells in the order in which they are measured. `sampling` goes into each request as it is."""

    model: Text
    sampling: dict[str, Any] = Field(default_factory=dict)
    cells: Annotated[tuple[PlanCell, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _names(self) -> Plan:
        if taken := sorted(set(self.sampling) & set(_OURS)):
            raise ValueError(f"sampling: {taken[0]} is set by the driver")
        for name, value in self.sampling.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"sampling: {name} is {value}, which JSON has no number for")
        cells = [cell.cell_id for cell in self.cells]
        requests = [one.request_id for cell in self.cells for one in cell.requests]
        for what, names in (("cell_id", cells), ("request_id", requests)):
            seen: set[str] = set()
            for name in names:
                if name in seen:
                    raise ValueError(f"{what} {name!r} stands twice")
                seen.add(name)
        return self

    @cached_property
    def sha256(self) -> str:
        """Digest of the plan: SHA-256 of its canonical JSON."""
        return sha256_bytes(plan_bytes(self))


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a stream is asked for beside tokens, so that they can be counted; a server may refuse any.

    `timings` is llama-server's own way to say with each chunk how many tokens there are so far.
    """

    token_ids: bool = True
    usage: bool = True
    continuous: bool = True
    timings: bool = True

    def fields(self) -> dict[str, Any]:
        """The fields of the request's body."""
        options = {"include_usage": True} | ({"continuous_usage_stats": True} if self.continuous else {})
        ids = ({"return_token_ids": True} if self.token_ids else {}) | (
            {"timings_per_token": True} if self.timings else {}
        )
        return ids | ({"stream_options": options} if self.usage else {})


def parse_plan(data: bytes, *, where: str) -> Plan:
    """The plan of a JSON file. Raises EngcmpError naming the field that is wrong."""
    value = parse_json(data, what="the plan", where=where, remedy="write it as the help of `engcmp throughput` shows")
    try:
        return Plan.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
        raise EngcmpError(
            f"the plan: {place or 'plan'}: {first['msg'].removeprefix('Value error, ')}",
            where=where,
            remedy="correct the field",
        ) from error


def plan_bytes(plan: Plan) -> bytes:
    """The plan as canonical JSON, without what was not given."""
    return canonical_bytes(plan.model_dump(mode="json", exclude_none=True))


def request_body(plan: Plan, request: PlanRequest, wishes: Wishes) -> bytes:
    """The JSON that is sent. Sampling is explicit: temperature 0 and top_p 1 where the plan says nothing."""
    seed = {} if request.seed is None else {"seed": request.seed}
    body = {
        "model": plan.model,
        **request.content,
        **_EXPLICIT,
        **plan.sampling,
        "max_tokens": request.max_tokens,
        **seed,
    }
    return json.dumps(body | {"stream": True} | wishes.fields(), separators=(",", ":")).encode()


def warm_up_requests(cell: PlanCell, count: int) -> tuple[PlanRequest, ...]:
    """The plan's own warm-up, or `count` short requests of the cell's form whose prompts share nothing with the plan's."""
    if cell.warmup is not None:
        return cell.warmup
    return tuple(short_request(cell.requests[0].path, number, _WARM_UP_TOKENS) for number in range(count))


def short_request(path: str, number: int, max_tokens: int) -> PlanRequest:
    """A request of ours to `path`, for a warm-up or to ask what a server takes."""
    text = f"Warm-up {number}: count upwards."
    name = f"warmup-{number}"
    if path == CHAT:
        return PlanRequest(request_id=name, messages=({"role": "user", "content": text},), max_tokens=max_tokens)
    return PlanRequest(request_id=name, prompt=text, max_tokens=max_tokens)


def nonce_line(study: str, cell_id: str, repeat: int, request: int) -> str:
    """The first line of a prompt that makes it unlike all others of a run, the same for every engine: 16 digits with spaces between.

    It has a fixed number of tokens under any tokenizer in which " 0" to " 9" are a token each, or two each.
    """
    digest = sha256_of([study, cell_id, repeat, request])
    digits = str(int(digest, 16))[-_NONCE_DIGITS:]
    return "Run " + " ".join(digits) + "."


def listing(plan: Plan) -> list[dict[str, Any]]:
    """Every timed request of the plan, in order: its cell, digests of the prompt and of its first line, what is expected and asked of it.

    `first_line_sha256` is None for a prompt that is given as token ids, or that begins with something else than text.
    """
    return [_listed(cell, request, is_timed=True) for cell in plan.cells for request in cell.requests]


def sent(plan: Plan, warm_up: int) -> list[dict[str, Any]]:
    """As `listing`, with the untimed requests where they are sent: before each new width `warm_up` of each stream, or the plan's own."""
    found, last = [], None
    for cell in plan.cells:
        before = cell_warm_up(cell, warm_up, last=last)
        found += [_listed(cell, one, is_timed=False) for one in before or ()]
        found += [_listed(cell, one, is_timed=True) for one in cell.requests]
        last = cell.concurrency
    return found


def cell_warm_up(cell: PlanCell, warm_up: int, *, last: int | None) -> tuple[PlanRequest, ...] | None:
    """What is sent before a cell, untimed, `last` being the width of the cell before; None where nothing is to be warmed up."""
    if cell.warmup is None and cell.concurrency == last:
        return None
    return warm_up_requests(cell, warm_up * min(cell.concurrency, len(cell.requests)))


def _first_line(request: PlanRequest) -> str | None:
    """The line with which a prompt begins: what no other prompt has, a cache cannot have either."""
    if request.token_ids is not None:
        return None
    text = request.prompt if request.messages is None else request.messages[0].get("content")
    return text.partition("\n")[0] if isinstance(text, str) else None


def _listed(cell: PlanCell, request: PlanRequest, *, is_timed: bool) -> dict[str, Any]:
    line = _first_line(request)
    return {
        "cell_id": cell.cell_id,
        "concurrency": cell.concurrency,
        "request_id": request.request_id,
        "timed": is_timed,
        "prompt_sha256": request.prompt_sha256,
        "first_line_sha256": None if line is None else sha256_bytes(line.encode("utf-8", "surrogatepass")),
        "expected_prompt_tokens": request.expected_prompt_tokens,
        "seed": request.seed,
        "max_tokens": request.max_tokens,
    }
