"""An open-loop benchmark client for any OpenAI-compatible server, compatible with SGLang's `bench_serving`.

`await run_benchmark(BenchSpec(base_url, prompts, request_rate=2.0)) -> BenchResult` is the Python interface:
`result.records` holds every request, `result.metrics()` the numbers, `result_line(result, …)` a result line.
`benchmarks.client.cli.main(argv) -> exit code` is the command line.
"""

from benchmarks.client.line import result_line
from benchmarks.client.record import RequestRecord
from benchmarks.client.run import BenchResult, BenchSpec, run_benchmark

__all__ = ["BenchResult", "BenchSpec", "RequestRecord", "result_line", "run_benchmark"]
