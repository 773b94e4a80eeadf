"""Append-only columns and immutable snapshots."""
