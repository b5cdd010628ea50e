"""Releases as wheels in a folder, for engines that are built in house and for machines without a network."""

from __future__ import annotations

from collections.abc import Callable

from engcmp_resources.errors import EngcmpError
from engcmp_resources.places import CHECKOUT
from engcmp_resources.releases.base import Listing, ReleasePlace, register_lister
from engcmp_resources.releases.wheels import package_name, releases_of, wheels_in


@register_lister("folder")
def list_folder(place: ReleasePlace, *, wanted: Callable[[str], bool], timeout_s: float) -> Listing:
    """The releases of `place.package` in the folder `place.name` (absolute, or relative to the checkout)."""
    folder = CHECKOUT / place.name
    if place.package is None:
        raise EngcmpError(
            "no package is named whose wheels are looked for", where=str(folder), remedy="name a package too"
        )
    if not folder.is_dir():
        raise EngcmpError("there is no such folder of wheels", where=str(folder), remedy="make it, or correct the path")
    package = package_name(place.package)
    return Listing(f"wheels of {package} in {place.name}", releases_of(package, wheels_in(folder, package)))
