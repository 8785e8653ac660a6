import asyncio
import threading
import time

import pytest

from gllm.multimodal.hashes import item_digest
from gllm.multimodal.pool import MediaPool


def test_work_runs_in_threads_of_its_kind_and_never_in_the_event_loop():
    async def main():
        pool = MediaPool(decode_workers=1)
        name = lambda: threading.current_thread().name  # noqa: E731
        assert (await pool.decode(name)).startswith("decode")
        assert (await pool.short(name)).startswith("prompt")
        pool.close()

    asyncio.run(main())


def test_a_long_decode_holds_up_neither_short_work_nor_the_event_loop():
    async def main():
        pool = MediaPool(decode_workers=1)
        gate = threading.Event()
        long = asyncio.ensure_future(pool.decode(gate.wait))
        queued = asyncio.ensure_future(pool.decode(lambda: 2))
        assert await pool.short(lambda: 1) == 1
        assert not long.done() and not queued.done()
        gate.set()
        assert await queued == 2
        pool.close()

    asyncio.run(main())


def test_a_cancelled_decode_that_has_not_begun_never_runs():
    async def main():
        pool = MediaPool(decode_workers=1)
        gate, ran = threading.Event(), []
        long = asyncio.ensure_future(pool.decode(gate.wait))
        cancelled = asyncio.ensure_future(pool.decode(ran.append, 1))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        gate.set()
        await long
        await pool.decode(time.time)
        assert not ran
        pool.close()

    asyncio.run(main())


def test_digests_tell_apart_all_that_shapes_pixels():
    same = item_digest(b"bytes", (28, 56))
    assert same == item_digest(b"bytes", (28, 56)) and len(same) == 16
    others = [
        item_digest(b"bytez", (28, 56)),
        item_digest(b"bytes", (56, 28)),
        item_digest(b"bytes", (28, 56), orientation=6),
        item_digest(b"bytes", (28, 56), resample=2),
    ]
    assert len({same, *others}) == 5
