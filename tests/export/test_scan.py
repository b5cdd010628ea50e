"""Nothing that must not leave does: planted secrets, paths, names and addresses are found, and ordinary text is left alone."""

from __future__ import annotations

import pytest

from engcmp_assets.export.scan import replaced, scan_for

SCAN = scan_for(
    hosts=["build-box-7", "pc"], users=["margarete", "root"], secrets=["s3cr3t-of-mine"], places=["/srv/engcmp-home"]
)
PLANTED = {
    "an OpenAI key": ("sk-" + "Ab1" * 12, "secret"),
    "a hub token": ("hf_" + "Ab1" * 12, "secret"),
    "a GitHub token": ("ghp_" + "Ab1" * 12, "secret"),
    "a fine-grained one": ("github_pat_" + "Ab1_" * 10, "secret"),
    "a GitLab token": ("glpat-" + "Ab1" * 8, "secret"),
    "a Slack token": ("xoxb-" + "12345-" * 3 + "abc", "secret"),
    "an AWS key": ("AKIA" + "ABCD1234" * 2, "secret"),
    "a Google key": ("AIza" + "Ab1cd" * 7, "secret"),
    "a private key": ("-----BEGIN OPENSSH PRIVATE KEY-----", "secret"),
    "a bearer": ("Authorization: Bearer " + "Ab1." * 8, "secret"),
    "an assignment": ('"api_key": "' + "Ab1" * 8, "secret"),
    "one of this environment": ("s3cr3t-of-mine", "secret"),
    "a home": ("/home/someone/models/x.gguf", "home-path"),
    "a Mac's home": ("/Users/someone/x", "home-path"),
    "root's home": ("/root/.cache/engcmp", "home-path"),
    "a Windows home": (r"C:\Users\someone\x", "home-path"),
    "the store": ("/srv/engcmp-home/store/ab", "home-path"),
    "the host": ("build-box-7", "host-name"),
    "the user": ("margarete", "user-name"),
    "an address": ("some.one+x@example.org", "e-mail"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_was_planted_is_found_and_replaced(name: str) -> None:
    planted, kind = PLANTED[name]
    text = f"before {planted} after"
    found = SCAN.findings(text)
    assert kind in {one.kind for one in found}
    clean = replaced(text, found)
    assert planted not in clean and clean.startswith("before ") and clean.endswith(" after")
    assert not SCAN.findings(clean)


@pytest.mark.parametrize(
    "text",
    [
        "q4_0/llamacpp@b11549 and K3.25-v1/vllm-fork@v0.9.2",
        "sha256:" + "ab" * 32,
        '"api_key": "sha256:0123456789abcdef"',
        '"api_key":null,"token_ids":[1,2,3]',
        '"next_token": 17, "tokens_sha256": "' + "ab" * 32 + '"',
        "/proc/cpuinfo, /usr/lib/x86_64-linux-gnu and files/ab.json",
        "a pc is not a host, and root is a node of a tree",
        "https://example.org/path?x=1",
        "margaretes Apfelbaum",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert not SCAN.findings(text), SCAN.findings(text)


def test_what_overlaps_is_replaced_once() -> None:
    text = "/home/margarete/build-box-7/some@example.org"
    assert replaced(text, SCAN.findings(text)) == "[removed: home-path]"
