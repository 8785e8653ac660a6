"""Models, their registry and their loader."""
