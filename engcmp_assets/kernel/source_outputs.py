"""Names of the outputs of `sources` that depend on the protocol: what an arm serves, and whose tokenizer made the prompt set."""

from __future__ import annotations

from engcmp_assets.kernel.names import WEIGHTS
from engcmp_assets.kernel.protocol import Protocol
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study_tables import PublishedCheckpoint
from engcmp_resources.errors import EngcmpError

TOKENIZER = "tokenizer.json"
TOKENIZER_FILES = "tokenizer.files.json"


def checkpoint_output(protocol: Protocol, arm: ArmKey) -> str:
    """The arm's checkpoint: a file that was made, or the list of a published one's files with the digest of each."""
    published = isinstance(protocol.checkpoint_of(arm), PublishedCheckpoint)
    return f"{arm.checkpoint}.{'files.json' if published else 'gguf'}"


def tokenizer_outputs(protocol: Protocol) -> tuple[str, ...]:
    """Whose tokenizer made the prompt set: one that the protocol names, else that of the weights; () where there are neither."""
    if protocol.prompt_set.tokenizer is not None:
        return (TOKENIZER,)
    return reference_outputs(protocol)


def one_tokenizer(protocol: Protocol) -> str:
    """The output with that tokenizer. Raises EngcmpError where there is none."""
    for name in tokenizer_outputs(protocol):
        return name
    raise EngcmpError(
        f"study {protocol.study} has no tokenizer: its reference was published, and nothing names one", where="protocol field prompt_set",
        remedy="write tokenizer = SOURCE, a source that holds the model's tokenizer.json",
    )  # fmt: skip


def reply_tokenizer_output(protocol: Protocol, arm: ArmKey) -> str:
    """Whose tokenizer wrote the arm's replies: one that the protocol names, else the checkpoint's own."""
    return TOKENIZER if protocol.prompt_set.tokenizer is not None else checkpoint_output(protocol, arm)


def reference_outputs(protocol: Protocol) -> tuple[str, ...]:
    """The weights that reference rows are computed from; () where they were published."""
    return (WEIGHTS,) if protocol.reference.engine == "reference" else ()
