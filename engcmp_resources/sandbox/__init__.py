"""Sandboxes for untrusted code of replies: Docker, else bubblewrap, else none at all. Never plain namespaces, never unsandboxed."""
