"""What people paste when they ask for help (`nvidia-smi topo -m`, lspci, NCCL's log, ...) as snapshots."""
