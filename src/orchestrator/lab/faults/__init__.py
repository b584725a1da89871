"""What can go wrong with a lab's node: one fault a file, found by scanning this package."""
