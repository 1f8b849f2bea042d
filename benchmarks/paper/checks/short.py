def share_kept(text):
    """As near to fifteen words as it is."""
    return min(1.0, 15 / max(1, len(text.split())))
