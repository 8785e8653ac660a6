"""Layers of the forward pass; torch only."""
