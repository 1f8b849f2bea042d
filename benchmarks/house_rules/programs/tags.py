import re


def read(task):
    topics = re.search(r"note about (\w+) and (\w+)", task)
    if not topics:
        return None
    return [("#", 0), (topics[1].upper(), 1), (",#", 0), (topics[2].upper(), 1)]
