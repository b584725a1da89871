"""One diagnosis a file, found by scanning this package. Pure."""
