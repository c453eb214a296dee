"""Whole parties: from a file, from Python, and all of them on one machine."""
