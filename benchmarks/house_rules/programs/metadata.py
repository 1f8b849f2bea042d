import re


def read(task):
    topic = re.search(r"document about (\w+)", task)
    person = re.search(r"\bby (\w+)|^(\w+) wrote|to (\w+)'s", task)
    revision = re.search(r"revision (\d+)", task)
    if not topic or not person or not revision:
        return None
    name = next(filter(None, person.groups()))
    return [
        ("{about: ", 0),
        (topic[1], 1),
        (", by: ", 0),
        (name, 1),
        (", rev: ", 0),
        (revision[1], 1),
        ("}", 0),
    ]
