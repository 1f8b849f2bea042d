import re


def read(task):
    cities = re.search(r"from (\w+) to (\w+)", task)
    van = re.search(r"[Vv]an (\d+)", task)
    if not cities or not van:
        return None
    return [(cities[1], 1), (">", 0), (cities[2], 1), ("@", 0), (van[1], 1)]
