"""How often the judge may be asked: a share of the turns, with some in hand so that a new installation need not wait."""

_IN_HAND = 20.0


class Allowance:
    """Every turn adds a share of a question, up to a few; every question takes one."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._most = _IN_HAND if share > 0 else 0.0
        self._left = self._most
        self.turns = 0
        self.questions = 0

    def earn(self) -> None:
        """A main turn was made."""
        self.turns += 1
        self._left = min(self._left + self._share, self._most)

    def take(self, *, is_needed: bool = False) -> bool:
        """Whether one more question may be asked; it is then counted. One that is needed may always be, unless none may."""
        if self._left < 1.0 and not (is_needed and self._most):
            return False
        self._left = max(0.0, self._left - 1.0)
        self.questions += 1
        return True

    def give_back(self) -> None:
        """A question that was taken is not asked after all."""
        self._left += 1.0
        self.questions -= 1
