"""Files of the user's into values: inventory, model profiles, stacks; and where our own data files lie."""
