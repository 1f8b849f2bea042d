"""Pure data and rules; standard library only."""
