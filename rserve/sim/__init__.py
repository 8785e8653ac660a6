"""A simulator of the whole server: the production scheduler under a virtual clock, with a machine model."""
