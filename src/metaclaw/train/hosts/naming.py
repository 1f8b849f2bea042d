"""What a version is called on a server: a name of its own, never given to other weights."""

PREFIX = "policy-"


def name_of(version: int) -> str:
    """`policy-000012`."""
    return f"{PREFIX}{version:06d}"
