"""A web server on the loopback address that misbehaves on demand."""

import asyncio
import socket
from collections import Counter
from contextlib import asynccontextmanager

from aiohttp import web

from tests.multimodal.pictures import encoded, rgb

PICTURE = encoded(rgb(60, 90), "JPEG", quality=95)


class Site:
    """What the server offers; hits counts requests by path, open and most_open the requests at once."""

    def __init__(self):
        self.hits = Counter()
        self.open = self.most_open = 0
        self.gate = asyncio.Event()
        self.port = 0

    def url(self, path, host="127.0.0.1"):
        return f"http://{host}:{self.port}/{path}"

    async def handle(self, request):
        name = request.match_info["name"]
        self.hits[name] += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            return await getattr(self, f"get_{name}")(request)
        finally:
            self.open -= 1

    async def get_picture(self, request):
        return web.Response(body=PICTURE, content_type="text/plain")

    async def get_empty(self, request):
        return web.Response(body=b"")

    async def get_page(self, request):
        return web.Response(text="<html>" + "x" * 100 + "</html>")

    async def get_missing(self, request):
        raise web.HTTPNotFound()

    async def get_gzip(self, request):
        return web.Response(body=PICTURE, headers={"Content-Encoding": "gzip"})

    async def get_redirect(self, request):
        return web.Response(status=302, headers={"Location": request.query["to"]})

    async def get_loop(self, request):
        return web.Response(status=302, headers={"Location": "/loop"})

    async def get_nowhere(self, request):
        return web.Response(status=302)

    async def get_halves(self, request):
        """The header, and the rest once the gate opens."""
        return await self._stream(request, PICTURE[:2000], self.gate.wait, PICTURE[2000:])

    async def get_silent(self, request):
        await self.gate.wait()
        return web.Response(body=PICTURE)

    async def get_stalled(self, request):
        return await self._stream(request, PICTURE[:2000], self.gate.wait, b"")

    async def get_drip(self, request):
        response = web.StreamResponse()
        await response.prepare(request)
        while not self.gate.is_set():
            await response.write(PICTURE[:1])
            await asyncio.sleep(0.02)
        return response

    async def get_endless(self, request):
        response = web.StreamResponse()
        await response.prepare(request)
        while not self.gate.is_set():
            await response.write(b"\xff\xd8\xff" + b"x" * 50_000)
        return response

    async def get_cut(self, request):
        response = web.StreamResponse(headers={"Content-Length": str(len(PICTURE))})
        await response.prepare(request)
        await response.write(PICTURE[:2000])
        request.transport.close()
        return response

    async def get_huge(self, request):
        return await self._stream(request, b"", self.gate.wait, b"", {"Content-Length": str(10**12)})

    async def _stream(self, request, first, pause, rest, headers=None):
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        await response.write(first)
        await pause()
        await response.write(rest)
        return response


@asynccontextmanager
async def site():
    """A running Site on a free port of 127.0.0.1."""
    own = Site()
    app = web.Application()
    app.router.add_get("/{name}", own.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        own.port = listener.getsockname()[1]
        await web.SockSite(runner, listener).start()
        try:
            yield own
        finally:
            own.gate.set()
            await runner.cleanup()
