"""`SOURCES.json` of a study: everything that has to be fetched, each with its pin, files, licence and size, or `unknown` with a reason.

Pure: it takes the file's bytes. Fetchers read it, `engcmp plan` prints it, and a protocol's `[sources.NAME]` refers to it by `listed = ID`.
A field that nobody has stated is the word `unknown`, never an empty one, and `unknown` says why: so nothing is passed off as pinned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationError, model_validator

from engcmp_assets.kernel.fields import Name, Sha256, Strict
from engcmp_assets.kernel.source_tables import ImageSource, ListedSource, RepositorySource, Source
from engcmp_resources.canonical import parse_json
from engcmp_resources.errors import EngcmpError, first_fault

SOURCES_FILE = "SOURCES.json"
UNKNOWN = "unknown"

Kind = Literal["hf", "git", "registry", "package_index", "mirror"]
Role = Literal["model", "drafter", "tokenizer", "image", "launcher", "panel", "texts", "tool", "patch", "results"]
_Unknown = Literal["unknown"]
_Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
_COMMIT, _DIGEST = re.compile(r"[0-9a-f]{40}"), re.compile(r"sha256:[0-9a-f]{64}")
_PINS = {
    "hf": (_COMMIT, "a commit of 40 hexadecimal digits"),
    "git": (_COMMIT, "a commit of 40 hexadecimal digits"),
    "registry": (_DIGEST, "a digest, sha256: and 64 hexadecimal digits"),
    "package_index": (re.compile(r"[0-9][0-9A-Za-z.+!-]*"), "a version"),
    "mirror": (re.compile(r"\S.*"), "the name of the version that the mirror keeps"),
}
# Where the parts of an entry may be unknown: the entry's own fields, and those of its files by `files.PATH.FIELD`.
_FIELDS = ("where", "revision", "files", "licence", "bytes")


class SourceFile(Strict):
    """One file of a source: its path there (with /), SHA-256 and size in bytes."""

    path: str
    sha256: Sha256 | _Unknown
    bytes: Annotated[int, Field(ge=0)] | _Unknown

    @model_validator(mode="after")
    def _is_inside(self) -> SourceFile:
        parts = self.path.split("/")
        if not self.path or "\\" in self.path or any(part in ("", ".", "..") or ":" in part for part in parts):
            raise ValueError(f"{self.path!r} is no path within a source")
        return self


class Why(Strict):
    """What is not known of an entry, why, and what is known of it all the same (`known`, say, the first digits of a digest)."""

    field: _Words
    why: _Words
    known: str | None = None


class StudySource(Strict):
    """One thing to fetch.

    `where`: `owner/name` on the HF hub, a git URL, `host/name` of a registry, a package, or a folder of the mirror. `revision`: what pins
    it there (commit, digest, version). `tag` is how people call it. `repo_type` is of the hub. `include` are the patterns (fnmatch) of the
    files that are taken where a source holds more. `files` are those whose hashes are stated: others are checked against what the place
    itself states. `bytes` is the size of all that is taken, `about_bytes` what a document says of it where that is no exact count.
    `fetch` false: known, and taken by no run (`note` says why). `stand_in`: for what these files stand in.
    """

    id: Name
    kind: Kind
    role: Role
    what: _Words
    where: _Words
    revision: _Words
    tag: str | None = None
    repo_type: Literal["model", "dataset"] | None = None
    include: list[str] = Field(default_factory=list)
    files: list[SourceFile] | _Unknown
    licence: _Words
    bytes: Annotated[int, Field(ge=0)] | _Unknown
    about_bytes: Annotated[int, Field(ge=0)] | None = None
    fetch: bool = True
    note: str | None = None
    stand_in: _Words | None = None
    unknown: list[Why] = Field(default_factory=list)

    @model_validator(mode="after")
    def _holds_together(self) -> StudySource:
        if fault := next(_faults(self), None):
            raise ValueError(fault)
        return self

    @property
    def pinned(self) -> bool:
        """Whether place and revision are known: only such a source can be fetched."""
        return UNKNOWN not in (self.where, self.revision)

    def reason(self, field: str) -> str:
        """Why `field` is unknown."""
        return next((one.why for one in self.unknown if one.field == field), "no reason is given")

    def _how(self, field: str) -> str:
        """How the pin of a tag whose place is known can be found out."""
        if field == "revision" and self.kind == "git" and self.tag and self.where != UNKNOWN:
            return f"find it out (`git ls-remote {self.where} refs/tags/{self.tag}`; of an annotated tag the line with ^{{}})"
        return "find it out"

    def require_pinned(self) -> None:
        """Raise EngcmpError, with the reason that the file gives, for a source that cannot be fetched because its pin is not known."""
        for field in ("where", "revision"):
            if getattr(self, field) == UNKNOWN:
                raise EngcmpError(
                    f"the {_CALLED[field]} of source {self.id} ({self.what}) is not known: {self.reason(field)}", where=SOURCES_FILE,
                    remedy=f"{self._how(field)}, write it there as its `{field}`, and freeze the study, or amend it if it was frozen",
                )  # fmt: skip


_CALLED = {"where": "address", "revision": "revision"}


class StudySources(Strict):
    """SOURCES.json, whole."""

    schema_: Literal["engcmp.study-sources/1"] = Field(alias="schema")
    note: str | None = None
    sources: list[StudySource]

    @model_validator(mode="after")
    def _each_once(self) -> StudySources:
        names = [one.id for one in self.sources]
        if doubled := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"source {doubled[0]!r} stands twice")
        return self

    def source(self, name: str) -> StudySource:
        """The entry of that id. Raises EngcmpError that lists the ids there are."""
        found = next((one for one in self.sources if one.id == name), None)
        if found is None:
            known = ", ".join(sorted(one.id for one in self.sources)) or "none"
            raise EngcmpError(f"no source {name!r}", where=SOURCES_FILE, remedy=f"it has {known}")
        return found


def parse_sources(data: bytes, *, where: str) -> StudySources:
    """The bytes of SOURCES.json. Raises EngcmpError that names the source and field for anything unknown, missing or contradictory."""
    remedy = "mend that field"
    raw = parse_json(data, what=SOURCES_FILE, where=where, remedy="mend the place it names")
    try:
        return StudySources.model_validate(raw)
    except ValidationError as error:
        place, words = first_fault(error.errors())
        field = ".".join(str(part) for part in place) or "(the whole)"
        raise EngcmpError(
            f"{SOURCES_FILE} field {field}{_named(raw, place)}: {words}", where=where, remedy=remedy
        ) from error


def _named(raw: object, place: tuple[int | str, ...]) -> str:
    """The id of the entry that a fault lies in, so that nobody has to count entries."""
    try:
        return f" (source {raw['sources'][place[1]]['id']})"  # type: ignore[index] # whatever is not there raises, below
    except (KeyError, IndexError, TypeError):
        return ""


def _faults(source: StudySource) -> Iterator[str]:
    pattern, form = _PINS[source.kind]
    if source.revision != UNKNOWN and pattern.fullmatch(source.revision) is None:
        yield f"revision {source.revision!r} is not {form}"
    if (source.repo_type is not None) != (source.kind == "hf"):
        yield "repo_type must stand with kind hf, and only there"
    if source.about_bytes is not None and source.bytes != UNKNOWN:
        yield "about_bytes stands only where bytes is unknown"
    if not source.fetch and not source.note:
        yield "a source that is not fetched needs a note that says why"
    lacking = [field for field in _FIELDS if getattr(source, field) == UNKNOWN]
    if isinstance(source.files, list):
        paths = [file.path for file in source.files]
        if doubled := sorted({path for path in paths if paths.count(path) > 1}):
            yield f"file {doubled[0]!r} stands twice"
        lacking += [f"files.{file.path}.{part}" for file in source.files for part in ("sha256", "bytes")
                    if getattr(file, part) == UNKNOWN]  # fmt: skip
    told = [one.field for one in source.unknown]
    for field in lacking:
        if not any(field == one or _covers(one, field) for one in told):
            yield f"{field} is unknown and `unknown` does not say why"
    for one in told:
        if not any(field == one or _covers(one, field) for field in lacking):
            yield f"`unknown` speaks of {one}, which is known"


def _covers(told: str, field: str) -> bool:
    """Whether one reason speaks of a field of every file: `files.*.sha256`."""
    return told.startswith("files.*.") and field.startswith("files.") and field.endswith(told.removeprefix("files.*"))


def with_listed(sources: Mapping[str, Source], files: Mapping[str, bytes], *, where: str) -> dict[str, Source]:
    """A protocol's sources with every `listed` one as SOURCES.json has it: a repository or an image at its pin, else what it is and lacks.

    Raises EngcmpError for a SOURCES.json that is missing or wrong, and for an id that it does not have.
    """
    listed = {name: entry for name, entry in sources.items() if isinstance(entry, ListedSource)}
    if not listed:
        return dict(sources)
    if SOURCES_FILE not in files:
        raise EngcmpError(
            f"protocol field sources.{next(iter(listed))}.listed needs {SOURCES_FILE}, which is missing", where=where,
            remedy="put it into the study's folder",
        )  # fmt: skip
    document = parse_sources(files[SOURCES_FILE], where=where)
    return dict(sources) | {name: _as_pinned(document.source(entry.listed)) for name, entry in listed.items()}


def _as_pinned(entry: StudySource) -> Source:
    tag = entry.tag or entry.revision
    if entry.pinned and entry.kind == "git":
        return RepositorySource(repository=entry.where, tag=tag, commit=entry.revision, license=entry.licence)
    if entry.pinned and entry.kind == "registry":
        return ImageSource(image=entry.where, tag=tag, digest=entry.revision, license=entry.licence)
    lacking = next((field for field in ("where", "revision") if getattr(entry, field) == UNKNOWN), None)
    why = f"its {lacking} is not known: {entry.reason(lacking)}" if lacking else None
    return ListedSource(listed=entry.id, kind=entry.kind, why=why)
