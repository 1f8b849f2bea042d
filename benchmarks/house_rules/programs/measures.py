import re

SIGNS = {"millimetres": "mm", "centimetres": "cm", "kilograms": "kg", "litres": "l"}


def read(task):
    measure = re.search(r"(\d+) (\w+metres|kilograms|litres)", task)
    if not measure or "label" not in task:
        return None
    return [(measure[1], 1), ("_", 0), (SIGNS[measure[2]], 1)]
