"""Tags of repositories and images, in the order of their versions as far as they tell one."""

from __future__ import annotations

import re
from typing import Any

from packaging.version import InvalidVersion, Version


def version_of(tag: str) -> Version | None:
    """The version that a tag such as `v1.2.0rc1` states; None for one such as `latest` or `b8672`."""
    try:
        return Version(tag)
    except InvalidVersion:
        return None


def is_prerelease(tag: str) -> bool:
    """Whether the tag states a version that is a development, alpha, beta or candidate one."""
    version = version_of(tag)
    return version is not None and version.is_prerelease


def tag_order(tag: str) -> tuple[Any, ...]:
    """Sorts tags without a version first, numbers in them by value (`b999` before `b1000`), then those with one."""
    version = version_of(tag)
    if version is not None:
        return (1, version, tag)
    parts = re.split(r"([0-9]+)", tag)
    return (0, [int(part) if index % 2 else part for index, part in enumerate(parts)], tag)
