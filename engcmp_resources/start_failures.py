"""What keeps engines from starting, as Docker and the engines print it, and what helps."""

from __future__ import annotations

import re

from engcmp_resources.errors import EngcmpError, UnfitMachine

LACKS_INSTRUCTION = r"died of SIGILL|exit code 132\b|[Ii]llegal instruction"  # 132: a shell's word for that signal

KNOWN_CAUSES: tuple[tuple[str, str], ...] = (
    (
        r"/dev/infiniband",
        "there is no /dev/infiniband here: leave the device out of the settings, or load the RDMA driver",
    ),
    (
        r"No such image|Unable to find image|image .* is not present",
        "the image is not present: docker pull it by its digest first",
    ),
    (
        r"port is already allocated|[Aa]ddress already in use|port \d+ .*is taken|couldn't bind",
        "the port is taken: end what listens there, or name another port, or none",
    ),
    (
        r"CUDA out of memory|OutOfMemoryError|cudaMalloc failed|less than desired GPU memory|"
        r"No available memory for the cache|[Nn]ot enough memory",
        "out of memory: another process may hold it (nvidia-smi); end it, or ask for a shorter context or a smaller share",
    ),
    (
        r"[Uu]nknown (config )?key|unrecognized arguments|error: (invalid|unknown) argument|no such option",
        "this version does not know an option or config key: correct the settings, or use the version that has it",
    ),
    (
        r"gated repo|GatedRepoError|401 Client Error|Access to model .* is restricted",
        "the model is gated: accept its licence and name the token's variable under `secrets`, or fetch it before",
    ),
    (
        r"could not select device driver|nvidia-container-cli|no CUDA-capable device",
        "Docker cannot give out a GPU: install the NVIDIA container toolkit, or leave `gpus` out",
    ),
    (
        r"CUDA driver version is insufficient|forward compatibility",
        "the driver is older than the image needs: update it, or use an older image",
    ),
    (
        r"executable file not found|exec format error|exec: \"[^\"]*\": stat ",
        "the image has no such program: correct `entrypoint` or `command`, or use an image for this processor",
    ),
    (r"No space left on device", "the disk is full: free space"),
    (
        LACKS_INSTRUCTION,
        "this processor lacks an instruction that this build needs: measure it on another machine, or use another build",
    ),
)

NO_DOCKER: tuple[tuple[str, str, str], ...] = (
    (
        r"FileNotFoundError|No such file",
        "there is no such socket",
        "install Docker and start it, or set DOCKER_HOST to its socket",
    ),
    (
        r"PermissionError|Permission denied",
        "this user may not use its socket",
        "let an administrator add you to the group docker, or use a rootless engine and set DOCKER_HOST",
    ),
    (
        r"Connection refused",
        "nothing listens on its socket",
        "start the Docker daemon (systemctl start docker)",
    ),
)


def why_no_docker(text: str) -> tuple[str, str]:
    """What lacks where the Docker library fails to connect with this text, and what helps; the text itself where it is not known."""
    for pattern, what, remedy in NO_DOCKER:
        if re.search(pattern, text):
            return what, remedy
    return text, "start Docker, or set DOCKER_HOST to its socket; your user must be allowed to use it"


def kind_of(text: str, otherwise: type[EngcmpError] = EngcmpError) -> type[EngcmpError]:
    """The error of a start that failed with this text: UnfitMachine where no second try here can mend it."""
    return UnfitMachine if re.search(LACKS_INSTRUCTION, text) else otherwise


def remedy_for(text: str) -> str:
    """What helps against a start that failed with this text: every known cause that is in it, else to read the log."""
    known = [remedy for pattern, remedy in KNOWN_CAUSES if re.search(pattern, text)]
    return "; ".join(known) or "read the log"
