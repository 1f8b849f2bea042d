"""Rules from messages: a model reads what people say, and what they lay down is in force at once."""
