"""Who is speaking: the session, kind and place of every request, found from what real clients send."""

from metaclaw.proxy.origin.origins import Origins

__all__ = ["Origins"]
