"""Arguments in, screen out."""
