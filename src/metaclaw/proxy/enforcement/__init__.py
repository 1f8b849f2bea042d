"""Enforcement: the tool calls of an answer are held until all are known, and released or refused
together.

If one breaks a held rule, the same provider is asked again, at most twice, with its own answer and
a result for each call that says why it was not run. The client gets one message: the text as it
came, then the calls that comply. If none do, it gets a text that names the rule, or, where the rule
says so, the calls with a warning. Nothing is ever run by us."""
