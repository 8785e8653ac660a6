"""The dashboard and the operations page speak of metrics and flags that exist, and of all of them."""

import argparse
import json
import re
from pathlib import Path

from gllm.config import add_engine_flags
from gllm.entrypoints.metrics import ROUTER_HELP, Metrics
from gllm.entrypoints.router_load import Distribution, RouterLoad
from gllm.runtime.messages import Stats
from rserve.config import RServeConfig

DOCS = Path(__file__).parents[2] / "docs"
OPERATIONS = (DOCS / "operations.md").read_text()


def exposed() -> set[str]:
    """Names of all metrics, with the driver's real ones."""
    from gllm.core.core_config import CoreConfig
    from gllm.core.engine_core import EngineCore

    values = EngineCore(CoreConfig(num_blocks=1)).stats()
    counters = {n: v for n, v in values.items() if n.endswith("_total")}
    counters |= {"busy_seconds_total:rank0": 1.0, "steps_total:rank0": 1.0}
    stats = Stats({n: v for n, v in values.items() if n not in counters}, counters)
    gauges = {n: 0.0 for n in ROUTER_HELP if n not in ("encoder_losses", "encode_batch_tokens")}
    load = RouterLoad(gauges, {"encoder_losses": 0.0}, {"encode_batch_tokens": Distribution((1,))})
    text = Metrics().render(0, stats, load).decode()
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    return {n for n in types if not n.endswith("_created")}


def mentioned(text: str) -> set[str]:
    """Metrics that a text names; those of a histogram without their suffix."""
    return {re.sub(r"_(bucket|sum|count)$", "", n) for n in re.findall(r"rserve_[a-z0-9_]+", text)}


def test_the_dashboard_shows_only_metrics_that_exist():
    board = json.loads((DOCS / "grafana.json").read_text())
    expressions = " ".join(t["expr"] for panel in board["panels"] for t in panel["targets"])
    assert mentioned(expressions) <= exposed()


def test_every_metric_is_documented():
    short = {"rserve_driver_tracker_tokens", "rserve_driver_tracker_bytes"}
    names = {n for n in exposed() if n.startswith("rserve_")} - short
    assert names <= mentioned(OPERATIONS), names - mentioned(OPERATIONS)


def test_every_flag_is_documented():
    parser = argparse.ArgumentParser()
    add_engine_flags(parser, cls=RServeConfig)
    flags = [
        a.option_strings for a in parser._actions if a.option_strings and a.dest not in ("help", "model")
    ]
    missing = [names[0] for names in flags if not any(f"{name}`" in OPERATIONS for name in names)]
    assert not missing
