"""Whose a container is: told from a label, and never guessed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from engcmp_resources.container_owners import is_dead, owner

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="without /proc nobody is judged")
SAY = "from engcmp_resources.container_owners import owner; import sys; print(owner(), flush=True); sys.stdin.read()"


def test_a_process_lives_until_it_has_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", SAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    label = process.stdout.readline()
    assert not is_dead(label, running=True)
    process.communicate()
    assert is_dead(label, running=True)
    assert not is_dead(owner(), running=True)


def test_a_later_process_of_the_same_number_is_another_one() -> None:
    boot, space, pid, _ = owner().split()
    assert pid == str(os.getpid())
    assert is_dead(f"{boot} {space} {pid} 1", running=True)


def test_who_cannot_be_seen_from_here_is_not_judged() -> None:
    boot, _, pid, start = owner().split()
    assert not is_dead(f"{boot} pid:[1] {pid} {start}", running=True)
    assert not is_dead("", running=False)
    assert not is_dead(f"{boot} {owner().split()[1]} .. 1", running=False)


def test_of_another_boot_is_only_what_does_not_run() -> None:
    _, space, pid, start = owner().split()
    assert is_dead(f"earlier {space} {pid} {start}", running=False)
    assert not is_dead(f"earlier {space} {pid} {start}", running=True)
