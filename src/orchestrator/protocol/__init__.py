"""What the controller and the nodes write to each other: one type for each message, read and written in one place.

Standard library only: it travels to the nodes inside the application (remote/app_archive.py).
"""
