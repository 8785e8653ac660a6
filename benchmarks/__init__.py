"""Benchmarks: an open-loop client for OpenAI-compatible servers, its workloads and its result lines."""
