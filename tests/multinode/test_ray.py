"""A model on two nodes of a Ray cluster answers as transformers, and goes on without an encoder's actor."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from evaluation.tiny_vlm.reference import reference_generate
from tests.checkpoints import make_random_checkpoint
from tests.e2e.server import running
from tests.e2e.test_deployments import as_request, check_answers, conversations, images_of
from tests.faults.deployment import Deployment, body, picture
from tests.multinode.ray_nodes import Cluster, two_nodes

NO_RAY = "Ray is not installed (extra [ray])"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("ray") is None, reason=NO_RAY)]
PROCESSES = {"rank0", "rank1", "encoder0"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with two_nodes(tmp_path_factory.mktemp("nodes"), cpus=2) as cluster:
        yield cluster


def flags(cluster: Cluster) -> tuple[str, ...]:
    """Two stages and an encoder: more than one node has CPUs for."""
    where = ("--executor", "ray", "--ray-address", cluster.address, "--pp", "2")
    return (*where, "--num-kv-blocks", "256", "--maxp", "32", "--embedding-batch-size", "1")


def running_on(cluster: Cluster) -> list[set[str]]:
    """The server's processes on each node."""
    return [PROCESSES & set(found) for found in cluster.processes()]


def test_two_nodes_answer_as_transformers_and_hold_nothing_afterwards(cluster: Cluster, tmp_path: Path):
    folder = make_random_checkpoint(tmp_path / "random")
    asked = [as_request(messages, n) for messages, n in conversations()]
    with running(tmp_path, str(folder), *flags(cluster)) as server, ThreadPoolExecutor(len(asked)) as pool:
        url = f"{server.url}/v1/chat/completions"
        answers = list(pool.map(lambda one: httpx.post(url, json=one, timeout=120).json(), asked))
        first, second = running_on(cluster)
        assert first and second and first | second == PROCESSES
        assert server.stop() == 0
    assert running_on(cluster) == [set(), set()]
    references = [reference_generate(folder, talk, images_of(talk), n) for talk, n in conversations()]
    check_answers(folder, answers, references)


def test_an_encoder_whose_actor_or_process_is_killed_is_started_again_and_no_answer_is_lost(
    cluster: Cluster, tmp_path: Path
):
    with running(tmp_path, "tiny", *flags(cluster)) as started:
        server = Deployment(started)
        asked = body(*map(picture, range(4)))
        alone = server.text_of(asked)
        lost = cluster.pid("encoder0")
        assert lost is not None
        os.kill(lost, signal.SIGSTOP)
        answer = server.later(asked)
        server.wait(lambda: server.metrics()["encoder_outstanding_tokens"] > 0, "nothing is being encoded")
        os.kill(cluster.actor("encoder0"), signal.SIGKILL)
        assert answer.result().json()["choices"][0]["message"]["content"] == alone
        assert cluster.pid("encoder0") not in (None, lost)
        assert server.metrics()["encoder_losses_total"] == 1
        os.kill(cluster.pid("encoder0") or 0, signal.SIGKILL)
        server.wait(lambda: server.metrics()["encoder_losses_total"] == 2, "the loss is not seen")
        assert server.text_of(asked) == alone
        server.wait(lambda: server.health()["status"] == "ok", "the server is not healthy")
        server.wait_idle()


def test_a_stage_whose_actor_is_killed_ends_the_server_with_its_name(cluster: Cluster, tmp_path: Path):
    with running(tmp_path, "tiny", *flags(cluster)) as server:
        os.kill(cluster.actor("rank1"), signal.SIGKILL)
        assert server.process.wait(60) == 1
    last = server.log.read_text().splitlines()[-1]
    assert last == "error: rank1 is lost: The actor is dead because its worker process has died"
    assert running_on(cluster) == [set(), set()]


def test_no_process_outlives_an_api_server_that_is_killed(cluster: Cluster, tmp_path: Path):
    with running(tmp_path, "tiny", *flags(cluster)) as started:
        server = Deployment(started)
        assert set().union(*running_on(cluster)) == PROCESSES
        started.process.kill()
        server.wait(lambda: running_on(cluster) == [set(), set()], "processes are left")
