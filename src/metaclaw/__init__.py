"""MetaClaw: a proxy that lets a deployed LLM agent learn from being used."""

__version__ = "0.2.0"
