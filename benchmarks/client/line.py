"""One run as one result line."""

from __future__ import annotations

from typing import Any

from benchmarks import results
from benchmarks.client.run import BenchResult
from benchmarks.client.server import deployment_fields


def result_line(result: BenchResult, workload: str, **extra: Any) -> results.Line:
    """SGLang's fields, those of the deployment as the server tells them, and `extra`, which wins.

    `input_token_source` says where input counts come from: "usage" (the server), "tokenizer", or "unknown"
    when some request has neither, in which case input throughput counts only the others.
    """
    spec = result.spec
    line: results.Line = {
        "backend": spec.backend,
        "dataset_name": workload,
        "workload": workload,
        "request_rate": spec.request_rate,
        "max_concurrency": spec.max_concurrency,
        "num_prompts": len(spec.prompts),
        "seed": spec.seed,
        "model": result.model,
        "source": "measured",
        "commit": results.current_commit(),
        "input_token_source": _input_token_source(result),
        "server_info": dict(result.server_info),
    }
    deployment = deployment_fields(result.server_info)
    deployment["hardware"] = deployment["hardware"] or results.hardware_name()
    return line | deployment | result.metrics() | extra


def detail_fields(result: BenchResult) -> dict[str, Any]:
    """Per-request lists, in the order of the prompts: SGLang's `--output-details`. Times in seconds."""
    records = result.records
    return {
        "input_lens": [record.prompt_tokens for record in records],
        "output_lens": [record.output_tokens for record in records],
        "arrivals": [record.arrival for record in records],
        "ttfts": [record.ttft for record in records],
        "itls": [record.itls for record in records],
        "latencies": [record.latency for record in records],
        "generated_texts": [record.text for record in records],
        "errors": [record.error for record in records],
    }


def _input_token_source(result: BenchResult) -> str:
    good = [record for record in result.records if record.ok]
    if any(record.prompt_tokens is None for record in good):
        return "unknown"
    return "usage" if all(record.has_usage for record in good) else "tokenizer"
