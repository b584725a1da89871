"""What the facts of a checkpoint mean: dimensions, the layouts its blocks allow, and what an engine would refuse."""
