"""Consumers of events. They render; they never decide."""
