"""What a proposal must pass before it is in force."""
