"""Readings from a database's tables."""
