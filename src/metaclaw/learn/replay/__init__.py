"""Replay of recorded turns with another skill in the prompt, answered from recorded tool results."""
