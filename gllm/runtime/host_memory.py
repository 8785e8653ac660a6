"""Memory of this host; no torch."""

from pathlib import Path

GIB = 2**30
ROOT = Path("/")


def free_cpu_bytes(root: Path = ROOT) -> int:
    """Memory that this process may still take without swapping: of the machine, and of its control groups.

    root: where /proc and /sys are.
    """
    groups = [_free_in_group(group) for group in _limited_groups(root)]
    return max(min([_meminfo(root)["MemAvailable"], *groups]), 0)


def obtainable_cpu_bytes(root: Path = ROOT) -> int:
    """Memory that this process may still take, swap included: the kernel kills who wants more."""
    memory = _meminfo(root)
    swap = memory["SwapFree"]
    groups = [_free_in_group(group) + _swap_in_group(group, swap) for group in _limited_groups(root)]
    return max(min([memory["MemAvailable"] + swap, *groups]), 0)


def _limited_groups(root: Path) -> list[Path]:
    """The control groups (version 2) of this process that have a limit: its own and those around it."""
    mounted = root / "sys/fs/cgroup"
    path = next((line[3:] for line in _lines(root / "proc/self/cgroup") if line.startswith("0::")), "/")
    own = mounted / path.strip("/")
    around = [group for group in own.parents if group.is_relative_to(mounted)]
    return [group for group in (own, *around) if _limit(group / "memory.max") is not None]


def _free_in_group(group: Path) -> int:
    """Cached files can be given back, so they count as free."""
    counters = dict(line.split() for line in _lines(group / "memory.stat"))
    cached = int(counters["inactive_file"]) + int(counters["active_file"])
    return int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()) + cached


def _swap_in_group(group: Path, free: int) -> int:
    """At most what is free on the machine."""
    limit = _limit(group / "memory.swap.max")
    if limit is None:
        return free
    return min(free, max(limit - int((group / "memory.swap.current").read_text()), 0))


def _limit(file: Path) -> int | None:
    """None where there is no such file, or it says "max"."""
    text = "".join(_lines(file)).strip()
    return int(text) if text.isdigit() else None


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.is_file() else []


def _meminfo(root: Path) -> dict[str, int]:
    """/proc/meminfo in bytes."""
    lines = (line.split() for line in _lines(root / "proc/meminfo"))
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines}
