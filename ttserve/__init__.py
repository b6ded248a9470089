"""What frontend and device service share, and nothing else."""

__version__ = "0.1.0"
