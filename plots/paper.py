"""Numbers that the paper's text gives, to be drawn beside ours. Pairs are (1K, 2K)."""

from __future__ import annotations

ENCODE_SHARE = 0.26  # §1, Figure 2: the largest share of encoding in one request
VLLM_TP4_LATENCY = 3.77  # §4.2.1: up to, against pipeline parallelism
EPD_TTFT = (-0.16, -0.20)  # §4.2.1: gLLM-epd against gLLM
RSERVE_TTFT = (-0.18, -0.19)  # §4.2.1: RServe against gLLM-epd
VLLM_TP4_THROUGHPUT = (-0.26, -0.28)  # §4.2.2: against pipeline parallelism
EPD_THROUGHPUT = (0.06, 0.085)  # §4.2.2: gLLM-epd against gLLM
RSERVE_THROUGHPUT = (10600.0, 11100.0)  # §4.2.2: saturated input tokens/s
RSERVE_SLO = (0.71, 0.70)  # §4.2.3: average attainment at TTFT 10 s
EPD_SLO = (0.61, 0.59)
C_SWEEP_TTFT = 2.91  # §4.3.1, Figure 16a: slowest over fastest
C_SWEEP_THROUGHPUT = -0.53
INTRA_THROUGHPUT = -0.32  # §4.3.2, Figure 17: RServe-intra against RServe
INTRA_TTFT = 1.72
STRICT_SLO_COVERAGE = (0.75, 1.69)  # §4.4.1, Figure 19: RServe over gLLM-epd
SINGLE_GPU_TTFT = -0.26  # §4.4.2, Figure 20: up to
INPUT_LENGTHS = (8_000.0, 12_000.0)  # §4.1.2: average tokens of a request
VISION_LENGTHS = (5_000.0, 9_000.0)  # Figure 15: of them of images
MMMU_SCORES = {"vLLM": 62.7, "gLLM": 62.6, "gLLM-epd": 62.4, "RServe": 62.6}  # Table 1


def of_workload(pair: tuple[float, float], workload: str) -> float | None:
    """The paper's number for a workload at 1K or 2K; None for other workloads."""
    size = workload.rpartition("-")[2]
    return {"1k": pair[0], "2k": pair[1]}.get(size)
