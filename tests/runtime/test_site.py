"""Where processes run: what is refused before anything starts, and what a plain start leaves alone."""

import subprocess
import sys
from dataclasses import replace

import pytest

from gllm.config import ConfigError, EngineConfig, ParallelConfig, engine_config_of
from gllm.runtime import site
from gllm.runtime.memory_check import HostNeed, check_host_memory
from gllm.runtime.site import make_site
from rserve.config import EpdConfig, RServeConfig
from rserve.runtime.deployment import EpdDeployment

ON_RAY = ParallelConfig(executor="ray", device="cpu")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"launch_mode": "master", "master_port": 1, "zmq_port_base": 2}, "--launch-mode"),
        ({"ranks": (0,)}, "--ranks"),
        ({"cpu_affinity": True}, "--cpu-affinity"),
    ],
)
def test_flags_that_place_processes_do_not_go_with_ray(flags: dict[str, object], named: str):
    engine_config_of({"executor": "ray"})
    with pytest.raises(ConfigError, match=f"{named}: not with --executor ray"):
        engine_config_of({"executor": "ray", **flags})


def test_ray_that_is_not_installed_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(site, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"Ray is not installed: pip install rserve\[ray\]"):
        make_site(EngineConfig(parallel=ON_RAY), "{}", ())


def test_embeddings_do_not_go_through_memory_that_nodes_do_not_share():
    for channel in ("shm", "cuda-ipc"):
        config = RServeConfig(parallel=ON_RAY, epd=EpdConfig(embedding_channel=channel))
        with pytest.raises(ConfigError, match="use --embedding-channel p2p"):
            EpdDeployment(config)


def test_this_hosts_memory_is_no_limit_for_processes_elsewhere():
    need = HostNeed(weights=2**40, kv_cache=0)
    check_host_memory(EngineConfig(parallel=ON_RAY), need, available=2**30)
    with pytest.raises(ConfigError):
        check_host_memory(EngineConfig(parallel=replace(ON_RAY, executor="local")), need, available=2**30)


def test_a_server_on_one_host_never_imports_ray():
    modules = "rserve.cli, rserve.entrypoints.serve, rserve.runtime.rank_main, rserve.runtime.encoder_main"
    program = f"import sys, {modules}; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
