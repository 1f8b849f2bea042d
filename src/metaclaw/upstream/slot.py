"""The policy slot: which version of the weights answers a session. One immutable value, flipped in one assignment."""

from collections.abc import Callable
from hashlib import blake2b

from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.policy import BASE_POLICY, Serving

_BITS = 53  # as many as a float holds exactly
_NONE: frozenset[SkillName] = frozenset()


class PolicySlot:
    """Holds what serves. `provider` is the one provider that has the policy's versions; all others answer with their own weights.

    `model_of` names a version at a provider that is reached over HTTP, where each version is a model of its own. Where the provider
    is there for the policy alone it `leads`: it is asked before those that are configured, which step in where it cannot answer.
    """

    def __init__(self, provider: str, model_of: Callable[[int], str] | None = None, *, leads: bool = False) -> None:
        self.provider = provider
        self.model_of = model_of
        self.leads = leads
        self._serving = Serving()

    @property
    def serving(self) -> Serving:
        """What serves now."""
        return self._serving

    def flip(self, serving: Serving) -> None:
        """From the next request on this serves. Running answers are finished by the weights that began them."""
        self._serving = serving

    def pick(self, session: SessionId) -> int:
        """The version for a session: the canary for its share of them, the same for as long as that canary is tried."""
        serving = self._serving
        if serving.canary is None:
            return serving.version
        return serving.canary if _uniform(session, serving.canary) < serving.canary_share else serving.version

    def absorbed(self, version: int) -> frozenset[SkillName]:
        """The skills that a version has in its weights, and needs no more in its prompts."""
        return _NONE if version == BASE_POLICY else self._serving.absorbed.get(version, _NONE)


def _uniform(session: SessionId, version: int) -> float:
    text = f"{version}\0{session}".encode("utf-8", "surrogatepass")
    digest = blake2b(text, digest_size=8, person=b"metaclaw-policy").digest()
    return (int.from_bytes(digest) >> (64 - _BITS)) / (1 << _BITS)
