"""What /server_info tells of a deployment, and what results files record of the machine."""

import os
import platform
from pathlib import Path
from typing import Any

from gllm.config import EngineConfig
from gllm.runtime.messages import RankReady


def describe(config: EngineConfig, dtype: str, ready: RankReady, threads: int) -> dict[str, Any]:
    """The fixed part of /server_info for scheme gllm; other schemes add their own fields.

    dtype: the checkpoint's, used unless --dtype says otherwise.
    """
    parallel = config.parallel
    return {
        "scheme": "gllm",
        "model": config.model.served_model_name or config.model.model,
        "load_format": config.model.load_format,
        "dtype": dtype if config.model.dtype == "auto" else config.model.dtype,
        "pp": parallel.pp,
        "tp": parallel.tp,
        "encoders": 0,
        "embedding_batch_size": None,
        "token_budget": config.scheduler.maxp,
        "max_in_flight": config.max_in_flight,
        "schedule_method": config.scheduler.schedule_method,
        "page_size": config.cache.page_size,
        "prefix_caching": config.cache.enable_prefix_caching,
        "num_kv_blocks": ready.num_kv_blocks,
        "num_kv_tokens": ready.num_kv_tokens,
        "max_model_len": ready.max_model_len,
        "threads_per_rank": threads,
        "hardware": hardware(),
    }


def hardware() -> str:
    """Such as '2 cores of Intel(R) Xeon(R) …', or '4 x NVIDIA H200' where the driver tells of GPUs."""
    gpus = [_field(path, "Model") for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))]
    if gpus:
        return f"{len(gpus)} x {gpus[0]}"
    cpu = _field(Path("/proc/cpuinfo"), "model name") or platform.machine()
    return f"{len(os.sched_getaffinity(0))} cores of {cpu}"


def _field(path: Path, name: str) -> str:
    """The value of the first `name : value` line of a file under /proc; empty without one."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""
