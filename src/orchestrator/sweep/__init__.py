"""`sweep`: candidates measured one after the other on the cluster itself, and what was found is kept."""
