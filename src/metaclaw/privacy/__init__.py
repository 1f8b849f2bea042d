"""What may not travel: secrets, other people's words, and authority that text from outside does not have."""
