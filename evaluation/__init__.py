"""Evaluation: the MMMU benchmark over HTTP, and the training of the `tiny` model."""
