"""Calendars: what each kind says about the next days, read by a child process so that no feed can slow serving."""
