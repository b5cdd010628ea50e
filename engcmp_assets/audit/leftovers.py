"""What killed runs leave beside their results: engine processes and containers without an owner, leases, and temporary files."""

from __future__ import annotations

from engcmp_assets.kernel.progress import Say
from engcmp_resources import containers
from engcmp_resources.engines._leases import remove_leftovers
from engcmp_resources.errors import EngcmpError
from engcmp_resources.gpu_locks import clean_up_locks
from engcmp_resources.locks import engine_lock, remove_orphans
from engcmp_resources.places import home_folder
from engcmp_resources.store import Store


def clean_up(say: Say) -> list[str]:
    """Remove them; what was removed, one line each. Beside a run that measures, what is that run's is left alone."""
    before = _temporaries()
    Store(home_folder())  # opening it removes the temporary files of processes that are gone
    return [*_end_orphans(say), *clean_up_locks()] + [
        f"removed temporary scratch/{name}" for name in sorted(before - _temporaries())
    ]


def _temporaries() -> set[str]:
    return {path.name for path in (home_folder() / "scratch").glob("tmp-*") if path.suffix != ".lock"}


def _end_orphans(say: Say) -> list[str]:
    """End engine processes and containers without an owner. While a run holds the engine lock, its engine is left alone."""
    try:
        with engine_lock(arm="gc", run_id="gc", waiting=lambda _text: None, timeout_s=0) as lock:
            scratch = home_folder() / "scratch"
            return [*remove_orphans(lock), *containers.remove_orphans(lock), *remove_leftovers(scratch, lock)]
    except EngcmpError as error:
        say(f"engine processes and containers were not looked at: {error.what}")
        return []
