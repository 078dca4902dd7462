"""Effects on the world outside the decision: messages to people."""
