"""The right text: a dozen prompts whose answers are kept, and compared after every start. Pure."""
