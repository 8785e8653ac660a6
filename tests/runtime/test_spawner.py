"""Children are forked, receive descriptors, are reported when they end, and never outlive their parent."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from gllm.runtime.spawner import Exited, Spawner, SpawnerLost

CHILD = "tests.runtime.forked_child"


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    made = Spawner(preload=(CHILD,), environment={"SPAWNER_TEST": "seen"})
    yield made
    made.close()


def wait_for_one(spawner: Spawner) -> Exited:
    (ended,) = spawner.poll(timeout=20.0)
    return ended


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pid: int) -> bool:
    deadline = time.monotonic() + 10.0
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not is_running(pid)


def test_a_child_gets_its_spec_its_descriptors_and_the_environment(spawner: Spawner):
    read, write = os.pipe()
    spawner.start("one", CHILD, "write hello", (write,))
    os.close(write)
    assert os.read(read, 100) == b"hello seen"
    ended = wait_for_one(spawner)
    assert (ended.name, ended.code) == ("one", 0)
    assert not spawner.alive


@pytest.mark.parametrize(("spec", "code"), [("exit 3", 3), ("raise", 1), ("kill", -signal.SIGKILL)])
def test_how_a_child_ended_is_reported(spawner: Spawner, spec: str, code: int):
    spawner.start("one", CHILD, spec)
    assert wait_for_one(spawner).code == code


def test_a_signal_reaches_the_child_of_that_name_only(spawner: Spawner):
    read, write = os.pipe()
    spawner.start("one", CHILD, "sleep", (write,))
    spawner.start("two", CHILD, "sleep", (write,))
    os.read(read, 100)
    spawner.signal("two", signal.SIGTERM)
    ended = wait_for_one(spawner)
    assert (ended.name, ended.code) == ("two", -signal.SIGTERM)
    assert spawner.alive == {"one"}


def test_closing_the_spawner_kills_its_children(spawner: Spawner):
    read, write = os.pipe()
    spawner.start("one", CHILD, "sleep", (write,))
    pid = int(os.read(read, 100))
    spawner.close()
    assert wait_until_gone(pid)


def test_children_die_with_the_process_that_started_them():
    script = (
        "import os, time\n"
        "from gllm.runtime.spawner import Spawner\n"
        f"s = Spawner(('{CHILD}',), {{'SPAWNER_TEST': 'x'}})\n"
        f"s.start('one', '{CHILD}', 'sleep', (1,))\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(os.read(parent.stdout.fileno(), 100))
        assert is_running(pid)
        parent.kill()
    assert wait_until_gone(pid)


def test_a_lost_zygote_is_an_error_that_says_so(spawner: Spawner):
    spawner._process.kill()
    with pytest.raises(SpawnerLost, match="was killed"):
        spawner.poll(timeout=20.0)
