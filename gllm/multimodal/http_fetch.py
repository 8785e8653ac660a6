"""Fetching over HTTP from hosts that strangers name: every hop is checked, bounded and timed."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from gllm.multimodal.data_url import check_bytes
from gllm.multimodal.errors import BadInput, excerpt
from gllm.multimodal.hosts import Address, HostRules, parse_hosts
from gllm.multimodal.limits import MediaLimits

# (host, port, family) -> the (family, address) pairs of a host name.
Lookup = Callable[[str, int, socket.AddressFamily], Awaitable[list[tuple[socket.AddressFamily, str]]]]

REDIRECTS = (301, 302, 303, 307, 308)
HEADERS = {"User-Agent": "rserve", "Accept": "image/*,*/*;q=0.5", "Accept-Encoding": "identity"}


async def system_lookup(
    host: str, port: int, family: socket.AddressFamily
) -> list[tuple[socket.AddressFamily, str]]:
    """Ask the system's resolver."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family)
    return [(entry[0], str(entry[4][0])) for entry in found]


class CheckedResolver(AbstractResolver):
    """Resolves names and returns only addresses that the rules allow.

    The connector connects to what is returned here, so the address checked is the address used. Notations
    such as 0x7f.1 or 2130706433 pass through here too, and are judged by the address they stand for.
    """

    def __init__(self, rules: HostRules, lookup: Lookup):
        self._rules = rules
        self._lookup = lookup

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        try:
            found = await self._lookup(host, port, family)
        except (OSError, UnicodeError):
            raise BadInput(f"the host {host!r} is not known", code="invalid_image_url") from None
        families = {_address(text): family for family, text in found}
        allowed = self._rules.check(host.lower().rstrip("."), port, list(families))
        return [
            ResolveResult(
                hostname=host,
                host=str(address),
                port=port,
                family=families[address],
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in allowed
        ]

    async def close(self) -> None:
        """Nothing is held."""


class HostGate:
    """At most so many fetches at once per host; the others wait here, and time out here."""

    def __init__(self, limit: int, timeout_s: float):
        self._limit = limit
        self._timeout_s = timeout_s
        self._hosts: dict[str, tuple[asyncio.Semaphore, int]] = {}

    @asynccontextmanager
    async def enter(self, host: str) -> AsyncIterator[None]:
        semaphore, users = self._hosts.get(host, (asyncio.Semaphore(self._limit), 0))
        self._hosts[host] = (semaphore, users + 1)
        try:
            try:
                async with asyncio.timeout(self._timeout_s):
                    await semaphore.acquire()
            except TimeoutError:
                raise BadInput(
                    f"{self._limit} fetches from {host!r} are under way and none ended within "
                    f"{self._timeout_s:g} s; send the image as a data: URL",
                    code="image_fetch_timeout",
                ) from None
            try:
                yield
            finally:
                semaphore.release()
        finally:
            users = self._hosts[host][1] - 1
            self._hosts[host] = (semaphore, users)
            if not users:
                del self._hosts[host]


class HttpFetcher:
    """Fetches http and https URLs under the limits and host rules of one server."""

    def __init__(self, limits: MediaLimits, lookup: Lookup = system_lookup):
        self._limits = limits
        self._lookup = lookup
        self._rules = parse_hosts(limits.media_hosts)
        self._gate = HostGate(limits.max_connections_per_host, limits.fetch_timeout_s)
        self._session: aiohttp.ClientSession | None = None

    async def fetch(self, text: str, sink: Callable[[bytes], None]) -> None:
        """Pass the body's chunks to sink as they arrive. Raises BadInput for whatever goes wrong."""
        url = self._checked(text)
        async with self._gate.enter(url.host or ""):
            try:
                async with asyncio.timeout(self._limits.fetch_timeout_s):
                    await self._follow(url, sink)
            except TimeoutError:
                raise BadInput(
                    f"{excerpt(text)} did not arrive within {self._limits.fetch_timeout_s:g} s in all, "
                    f"{self._limits.stall_timeout_s:g} s without a byte; send the image as a data: URL",
                    code="image_fetch_timeout",
                ) from None
            except aiohttp.InvalidURL:
                raise BadInput(f"{excerpt(text)} is not a URL", code="invalid_image_url") from None
            except (aiohttp.ClientError, OSError, ValueError) as error:
                raise BadInput(
                    f"{excerpt(text)} could not be fetched ({type(error).__name__})", code="invalid_image_url"
                ) from error

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _follow(self, url: URL, sink: Callable[[bytes], None]) -> None:
        for _ in range(self._limits.max_redirects + 1):
            async with self._open_session().get(url, allow_redirects=False) as response:
                if response.status not in REDIRECTS:
                    return await self._read(response, sink)
                location = response.headers.get("Location")
            if not location:
                raise BadInput(f"{excerpt(str(url))} redirects to nowhere", code="invalid_image_url")
            url = self._checked(str(url.join(URL(location))))
        raise BadInput(
            f"more than {self._limits.max_redirects} redirects; use the final URL", code="invalid_image_url"
        )

    async def _read(self, response: aiohttp.ClientResponse, sink: Callable[[bytes], None]) -> None:
        if response.status != 200:
            raise BadInput(
                f"{excerpt(str(response.url))} was answered with status {response.status}",
                code="invalid_image_url",
            )
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise BadInput(
                f"{excerpt(str(response.url))} came compressed, though identity was asked for",
                code="invalid_image_url",
            )
        check_bytes(response.content_length or 0, self._limits.max_media_bytes)
        size = 0
        async for chunk in response.content.iter_any():
            size += len(chunk)
            check_bytes(size, self._limits.max_media_bytes)
            sink(chunk)

    def _checked(self, text: str) -> URL:
        """The URL that will be requested; raises BadInput if its form or its literal address is refused."""
        try:
            url = URL(text)
            host, port = url.host, url.port
        except (ValueError, UnicodeError) as error:
            raise BadInput(f"{excerpt(text)} is not a URL ({error})", code="invalid_image_url") from None
        if url.scheme not in ("http", "https") or not host or port is None:
            raise BadInput(f"{excerpt(text)} is not an http or https URL", code="invalid_image_url")
        if url.user is not None or url.password is not None:
            raise BadInput("URLs with a user name or password are refused", code="invalid_image_url")
        if self._rules.off:
            self._rules.check(host, port, [])
        try:
            literal = _address(host)
        except ValueError:
            return url
        self._rules.check(host, port, [literal])
        return url

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            limits = self._limits
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0, resolver=CheckedResolver(self._rules, self._lookup), use_dns_cache=False
                ),
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=limits.connect_timeout_s, sock_read=limits.stall_timeout_s
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=HEADERS,
                auto_decompress=False,
                trust_env=False,
            )
        return self._session


def _address(text: str) -> Address:
    """An address from its usual notation, without a zone; raises ValueError for names."""
    return ipaddress.ip_address(text.partition("%")[0])
