"""Bytes into the world."""
