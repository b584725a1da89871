"""The page that `web` serves."""
