"""python -m tests.multinode.client URL: chat bodies from standard input, a JSON list; their texts go out."""

import json
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def ask(url: str, body: dict[str, Any]) -> str:
    """The text of one answer. Raises HTTPError."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        return str(json.load(response)["choices"][0]["message"]["content"])


def main(url: str) -> None:
    """All bodies at once; texts in their order."""
    bodies = json.load(sys.stdin)
    with ThreadPoolExecutor(len(bodies)) as pool:
        print(json.dumps(list(pool.map(lambda body: ask(url, body), bodies))))


if __name__ == "__main__":
    main(sys.argv[1])
