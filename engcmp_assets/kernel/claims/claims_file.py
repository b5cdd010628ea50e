"""A file of claims: JSON or TOML, with the study that they are of, or with the facts that they are to be held against."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field, TypeAdapter, ValidationError

from engcmp_assets.kernel.claims.facts import Facts
from engcmp_assets.kernel.claims.records import Claim
from engcmp_assets.kernel.fields import Strict
from engcmp_resources.canonical import parse_json
from engcmp_resources.errors import EngcmpError, first_fault

_REMEDY = "mend the file"
_FACTS: TypeAdapter[Facts] = TypeAdapter(Facts)


class _File(Strict):
    study: str | None = None
    facts: dict[str, dict[str, Any]] = Field(default_factory=dict)
    claims: tuple[Claim, ...] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class ClaimsFile:
    """Claims in the order of the file; `study` is whose results they are of, `facts` (by claim id) what the file itself states of some.

    A claim that has facts here is of something that lies in no home: nothing proves them.
    """

    study: str | None
    claims: tuple[Claim, ...]
    facts: Mapping[str, Facts]


def parse_claims(data: bytes, *, where: str) -> ClaimsFile:
    """A file of one claim or more; `where` ends in its suffix.

    Raises EngcmpError that names the claim and the field at fault, or the line that is neither; and for two claims of one id.
    """
    if where.endswith(".toml"):
        try:
            raw: object = tomllib.loads(data.decode("utf-8"))
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise EngcmpError(f"claims are not TOML: {error}", where=where, remedy=_REMEDY) from error
    else:
        raw = parse_json(data, what="claims", where=where, remedy=_REMEDY)
    try:
        found = _File.model_validate(raw)
    except ValidationError as error:
        raise _field_error(error, where, Claim.model_fields) from error
    names = [one.claim_id for one in found.claims]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise EngcmpError(f"claim {twice[0]} stands twice", where=where, remedy="give each claim an id of its own")
    if stray := sorted(found.facts.keys() - set(names)):
        raise EngcmpError(f"facts are stated of {stray[0]}, and there is no such claim", where=where, remedy=_REMEDY)
    return ClaimsFile(found.study, found.claims, {name: _facts(raw, name, where) for name, raw in found.facts.items()})


def _facts(raw: Mapping[str, Any], claim_id: str, where: str) -> Facts:
    try:
        facts = _FACTS.validate_python(raw)
    except ValidationError as error:
        raise _field_error(error, where, (), f"facts.{claim_id}.") from error
    for place in _unknown(raw, facts):
        raise EngcmpError(f"field facts.{claim_id}.{place} is none that facts have", where=where, remedy=_REMEDY)
    return facts


def _unknown(raw: Any, parsed: Any) -> Iterator[str]:
    """Names in a table that the record made of it does not have: dataclasses would leave them out in silence."""
    if isinstance(parsed, tuple) and isinstance(raw, list):
        for one, other in zip(raw, parsed, strict=False):
            yield from _unknown(one, other)
    if not dataclasses.is_dataclass(parsed) or not isinstance(raw, Mapping):
        return
    names = {one.name for one in dataclasses.fields(parsed)}
    for name, value in raw.items():
        if name not in names:
            yield name
        else:
            yield from (f"{name}.{place}" for place in _unknown(value, getattr(parsed, name)))


def _field_error(error: ValidationError, where: str, known: Any, before: str = "") -> EngcmpError:
    place, words = first_fault(error.errors(), known)
    return EngcmpError(f"field {before}{'.'.join(map(str, place)) or 'the file'}: {words}", where=where, remedy=_REMEDY)
