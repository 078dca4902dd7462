"""The agent of one GPU node."""
