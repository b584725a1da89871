"""One file a verb: arguments in, screen out. rich lives here and nowhere else."""
