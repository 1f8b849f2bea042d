"""Identifiers are unique."""

import os

from metaclaw.domain.ids import new_id


def test_a_forked_process_makes_identifiers_of_its_own() -> None:
    from_child, to_parent = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(to_parent, new_id("").encode())
        os._exit(0)
    os.close(to_parent)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with os.fdopen(from_child) as told:
        assert told.read()[-20:] != new_id("")[-20:]
