"""The lab's NVML: a shared library under the ordinary name, compiled here, and the file it answers from."""
