"""Measures the engine's parts on the machine at hand, for the simulator."""
