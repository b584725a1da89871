"""Going on without a node, and with the facts of now."""
