"""A provider's proof of its reasoning, and how it survives a conversation held on another wire.

In the domain types a signature is always sealed: the name of the wire whose provider made it, a colon, and the provider's
own bytes. A client is shown its own wire's proofs bare and others sealed, so that it sends them back untouched; a provider
gets back only what it made itself.
"""

from metaclaw.domain.chat import Wire

_REDACTED = "redacted:"
_SEALS = {wire: f"{wire.value}:" for wire in Wire}


def seal(wire: Wire, shown: str | None) -> tuple[str | None, bool]:
    """What a client or provider of this wire sent, sealed, and whether a foreign proof was of redacted thinking."""
    if not shown:
        return None, False
    redacted = shown.startswith(_REDACTED)
    bare = shown.removeprefix(_REDACTED)
    if bare.startswith(tuple(_SEALS.values())):
        return bare, redacted
    return _SEALS[wire] + shown, False


def show(wire: Wire, signature: str, *, redacted: bool = False) -> str:
    """A sealed proof as a client of this wire shall keep it."""
    own = unseal(wire, signature)
    if own is not None:
        return own
    return _REDACTED + signature if redacted else signature


def unseal(wire: Wire, signature: str | None) -> str | None:
    """The provider's own bytes, if a provider of this wire made the proof."""
    if signature is None or not signature.startswith(_SEALS[wire]):
        return None
    return signature.removeprefix(_SEALS[wire])
