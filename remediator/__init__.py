"""The controller: facts, decisions, actions."""
