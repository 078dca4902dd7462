"""What SREs write: the policy model, its quantities, and the loading of files."""
