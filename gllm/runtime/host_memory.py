"""Memory of this host; no torch."""

from pathlib import Path

GIB = 2**30


def free_cpu_bytes() -> int:
    """Memory that this process may still take: of the machine, and of its control group."""
    free = _meminfo()["MemAvailable"]
    group = Path("/sys/fs/cgroup")
    if (group / "memory.max").is_file() and (limit := (group / "memory.max").read_text().strip()).isdigit():
        counters = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        used = int((group / "memory.current").read_text()) - int(counters["inactive_file"])
        free = min(free, int(limit) - used)
    return max(free, 0)


def _meminfo() -> dict[str, int]:
    """/proc/meminfo in bytes."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines}
