"""l40s-deploy: one very large model on PCIe GPU servers, started, watched and restarted as one gang."""

__version__ = "0.2.0"
