"""The tiny model: synthetic pictures, questions about them, training, and the check of what it learned."""
