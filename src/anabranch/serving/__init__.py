"""Predictions and metrics over HTTP and NATS."""
