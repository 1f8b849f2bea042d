"""What a proposal must pass before it is in force: draft checks, replays, a live trial."""
