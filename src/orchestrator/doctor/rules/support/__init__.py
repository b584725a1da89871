"""What several rules use: the cluster as rules see it, comparisons, ports, the registry of rules. No rule is here."""
