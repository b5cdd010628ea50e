"""A launcher of llama.cpp's server, and one that runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from decoding import VOCAB, DecoderLauncher

from engcmp_resources.canonical import sha256_file
from engcmp_resources.engines.base import DecodingEngine, LaunchSpec


@pytest.fixture(scope="session")
def decoder_spec(llamacpp_library: Path, q4_0_model: Path) -> LaunchSpec:
    return LaunchSpec(
        engine="llamacpp",
        version="b11549",
        library_sha256=sha256_file(llamacpp_library),
        model_sha256=sha256_file(q4_0_model),
        threads=2,
        context_tokens=512,
        batch_tokens=512,
        micro_batch_tokens=512,
        vocab=VOCAB,
    )


@pytest.fixture
def start_server(decoder_spec: LaunchSpec, llamacpp_library: Path, q4_0_model: Path, tmp_path: Path) -> DecoderLauncher:
    return DecoderLauncher(decoder_spec, llamacpp_library, q4_0_model, tmp_path / "engine.log")


@pytest.fixture(scope="module")
def decoder(
    decoder_spec: LaunchSpec, llamacpp_library: Path, q4_0_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DecodingEngine]:
    """One running server for the tests that leave it as it was."""
    log = tmp_path_factory.mktemp("shared") / "engine.log"
    with DecoderLauncher(decoder_spec, llamacpp_library, q4_0_model, log)() as running:
        yield running
