"""The real SGLang for the lab, and a model small enough for it."""
