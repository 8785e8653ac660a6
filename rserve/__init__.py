"""RServe: overlapping encoding and prefill for large multimodal models, on top of gllm."""
