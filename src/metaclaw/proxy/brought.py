"""Which skills a client has put into its prompt itself.

To look for a few names in 200 kB takes longer than all else that placing does, and an agent sends its whole history with every
request. So of a large body only messages are searched that were not searched for the same names before.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from metaclaw.domain.chat import Json
from metaclaw.domain.skill import Skill
from metaclaw.proxy.reading import Body, Listed
from metaclaw.skills import already_present

_KEPT_SETS = 8
_KEPT_MESSAGES = 4_096


class Brought:
    """Remembers messages that have none of some names in them, by a hash that means nothing outside this process."""

    def __init__(self) -> None:
        self._free_of: OrderedDict[tuple[bytes, ...], set[int]] = OrderedDict()

    def among(self, skills: Sequence[Skill], body: bytes, parsed: Mapping[str, Json]) -> list[Skill]:
        """Those of the skills that the client has brought."""
        names = [skill.name.encode() for skill in skills]
        listed = parsed.listed if isinstance(parsed, Body) else None
        if listed is not None and not self._may_hold(names, body, listed):
            return []
        named = [skill for skill, name in zip(skills, names, strict=True) if name in body]
        return [skill for skill in named if _is_present(skill, body)] if named else named

    def _may_hold(self, names: list[bytes], body: bytes, listed: Listed) -> bool:
        """Whether one of the names may stand in the body: in a message that is new, or beside the messages."""
        free = self._known(tuple(names))
        fresh = [raw for raw in listed.raws if hash(raw) not in free]
        beside = (body[: listed.spans[0][0]], body[listed.spans[-1][1] :])
        for text in (*beside, *fresh):
            for name in names:
                if name in text:
                    return True
        if len(free) + len(fresh) > _KEPT_MESSAGES:
            free.clear()
        free.update(map(hash, fresh))
        return False

    def _known(self, names: tuple[bytes, ...]) -> set[int]:
        free = self._free_of.get(names)
        if free is None:
            free = self._free_of[names] = set()
            if len(self._free_of) > _KEPT_SETS:
                self._free_of.popitem(last=False)
        else:
            self._free_of.move_to_end(names)
        return free


def _is_present(skill: Skill, body: bytes) -> bool:
    return already_present(skill, body.decode("utf-8", "replace").replace("\\n", "\n"))
