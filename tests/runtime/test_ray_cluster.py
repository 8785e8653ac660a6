"""Places for processes on a Ray cluster: as many CPUs as fit, a GPU each where there are any."""

import signal
import socket

import pytest

pytest.importorskip("ray")

from gllm.config import ParallelConfig
from gllm.runtime.ray_cluster import choose_bundle, connect, room
from gllm.runtime.ray_site import last_words
from gllm.runtime.site import LaunchError


def test_a_bundle_is_on_one_node():
    nodes = [{"CPU": 4.0, "GPU": 1.0}, {"CPU": 3.0}, {"GPU": 2.0}]
    assert room(nodes, {"CPU": 2.0}) == 3
    assert room(nodes, {"CPU": 2.0, "GPU": 1.0}) == 1
    assert room([], {"CPU": 1.0}) == 0


@pytest.mark.parametrize(("cpus", "processes", "each"), [((2, 2), 3, 1), ((16, 16), 3, 8), ((8, 3), 4, 2)])
def test_processes_get_the_most_cpus_with_which_all_fit(cpus: tuple[int, ...], processes: int, each: int):
    nodes = [{"CPU": float(number)} for number in cpus]
    assert choose_bundle(nodes, ParallelConfig(), processes) == {"CPU": float(each)}


def test_a_process_gets_a_gpu_where_there_are_any_unless_cpus_are_asked_for():
    nodes = [{"CPU": 16.0, "GPU": 2.0}, {"CPU": 16.0, "GPU": 1.0}]
    assert choose_bundle(nodes, ParallelConfig(), 3) == {"CPU": 1.0, "GPU": 1.0}
    assert choose_bundle(nodes, ParallelConfig(threads_per_rank=4), 3) == {"CPU": 4.0, "GPU": 1.0}
    assert choose_bundle(nodes, ParallelConfig(device="cpu"), 4) == {"CPU": 8.0}


@pytest.mark.parametrize(
    ("nodes", "flags", "words"),
    [
        ([{"CPU": 2.0}], {}, "3 processes need 1 CPU each, and the cluster's nodes have 2 CPUs [+] 0 GPUs"),
        ([{"CPU": 3.0}] * 2, {"threads_per_rank": 2}, "3 processes need 2 CPUs each"),
        ([{"CPU": 8.0, "GPU": 2.0}], {}, "3 processes need 1 CPU and 1 GPU each.* 8 CPUs [+] 2 GPUs"),
        ([{"CPU": 8.0}], {"device": "cuda"}, "1 GPU each.* 0 GPUs.* or use --device cpu"),
    ],
)
def test_what_is_needed_and_what_there_is_are_named(
    nodes: list[dict[str, float]], flags: dict[str, object], words: str
):
    with pytest.raises(LaunchError, match=words):
        choose_bundle(nodes, ParallelConfig(**flags), 3)


def test_an_actors_end_is_told_in_one_sentence():
    told = "The actor died.\n\tpid: 5\nThe actor is dead because its node has died. Node Id: 7. Causes: ...\n"
    assert last_words(RuntimeError(told)) == "The actor is dead because its node has died"
    assert last_words(RuntimeError()) == "RuntimeError"


def test_a_missing_cluster_is_told_at_once_and_signals_stay_as_they_were():
    before = signal.getsignal(signal.SIGTERM)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(LaunchError, match=f"no Ray cluster at 127.0.0.1:{port} .*`ray start --head`"):
        connect(f"127.0.0.1:{port}")
    assert signal.getsignal(signal.SIGTERM) is before
