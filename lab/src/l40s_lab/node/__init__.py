"""What an emulated node shows: files, models, root file system."""
