import asyncio
import base64
import socket
from contextlib import asynccontextmanager

import pytest

from gllm.multimodal.errors import BadInput
from gllm.multimodal.fetch import MediaFetcher
from gllm.multimodal.http_fetch import system_lookup
from gllm.multimodal.limits import MediaLimits, images_per_prompt
from gllm.multimodal.pool import MediaPool
from tests.multimodal.pictures import encoded, rgb
from tests.multimodal.web import PICTURE, site


def names(table):
    """A name service for tests: host -> addresses, or a list of the answers to successive calls."""

    async def lookup(host, port, family):
        found = table.get(host)
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        found = found.pop(0) if isinstance(found[0], list) else found
        return [(socket.AF_INET6 if ":" in text else socket.AF_INET, text) for text in found]

    return lookup


@asynccontextmanager
async def fetching(lookup=system_lookup, **limits):
    """A fetcher and a site that it may fetch from, unless media_hosts says otherwise."""
    pool = MediaPool(1)
    options = {"media_hosts": ("127.0.0.1",), **limits}
    async with site() as web:
        fetcher = MediaFetcher(MediaLimits(**options), pool, lookup)
        try:
            yield fetcher, web
        finally:
            await fetcher.close()
            pool.close()


async def refused(fetcher, url, says):
    media = fetcher.open(url)
    with pytest.raises(BadInput, match=says) as caught:
        await asyncio.wait_for(media.read(), 20)
    with pytest.raises(BadInput):
        await media.header()
    await media.release()
    return caught.value


def test_a_picture_is_fetched_whatever_type_is_declared():
    async def main():
        async with fetching() as (fetcher, web):
            media = fetcher.open(web.url("picture"))
            header = await media.header()
            assert (header.height, header.width) == (60, 90)
            assert await media.read() == PICTURE

    asyncio.run(main())


def test_the_header_is_known_before_the_body_has_arrived():
    async def main():
        async with fetching() as (fetcher, web):
            media = fetcher.open(web.url("halves"))
            header = await asyncio.wait_for(media.header(), 10)
            assert (header.height, header.width) == (60, 90)
            reading = asyncio.ensure_future(media.read())
            await asyncio.sleep(0.05)
            assert not reading.done()
            web.gate.set()
            assert await reading == PICTURE

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("missing", "answered with status 404"),
        ("gzip", "came compressed"),
        ("loop", "more than 5 redirects"),
        ("nowhere", "redirects to nowhere"),
        ("huge", "1000000000000 bytes, above the limit of 100000"),
        ("endless", "bytes, above the limit of 100000"),
        ("silent", "did not arrive"),
        ("stalled", "did not arrive"),
        ("drip", "did not arrive"),
        ("cut", "could not be fetched"),
    ],
)
def test_a_misbehaving_server_gives_an_error_in_time(path, says):
    async def main():
        limits = {"fetch_timeout_s": 0.6, "stall_timeout_s": 0.3, "max_media_bytes": 100_000}
        async with fetching(**limits) as (fetcher, web):
            await refused(fetcher, web.url(path), says)

    asyncio.run(main())


@pytest.mark.parametrize(("path", "says"), [("page", "no known image format"), ("empty", "0 bytes")])
def test_what_is_no_picture_is_said_by_its_header(path, says):
    async def main():
        async with fetching() as (fetcher, web):
            with pytest.raises(BadInput, match=says):
                await fetcher.open(web.url(path)).header()

    asyncio.run(main())


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "LOCALHOST.",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "017700000001",
        "127.1",
        "0",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "１２７.0.0.1",
        "127。0。0。1",
    ],
)
def test_no_notation_of_a_private_address_reaches_it(host):
    async def main():
        async with fetching(media_hosts=None, fetch_timeout_s=5) as (fetcher, web):
            await refused(fetcher, web.url("picture", host), r"may not be fetched from|not known|not a URL")
            assert not web.hits

    asyncio.run(main())


def test_a_name_that_resolves_to_a_private_address_is_refused():
    async def main():
        async with fetching(names({"evil.test": ["127.0.0.1"]}), media_hosts=None) as (fetcher, web):
            await refused(fetcher, web.url("picture", "evil.test"), "'evil.test' may not be fetched from")
            assert not web.hits

    asyncio.run(main())


def test_a_listed_name_is_connected_to_at_the_address_that_was_checked():
    async def main():
        table = {"cdn.test": [["127.0.0.1"], ["10.0.0.1"]]}
        async with fetching(names(table), media_hosts=("cdn.test",)) as (fetcher, web):
            assert await fetcher.open(web.url("picture", "cdn.test")).read() == PICTURE
            assert table["cdn.test"] == [["10.0.0.1"]], "resolved once: what was checked is what was used"

    asyncio.run(main())


def test_a_name_that_changes_its_address_after_the_check_gains_nothing():
    async def main():
        table = {"rebind.test": [["192.0.2.1", "127.0.0.1"]]}
        async with fetching(names(table), media_hosts=None) as (fetcher, web):
            await refused(fetcher, web.url("picture", "rebind.test"), "may not be fetched from")
            assert not web.hits

    asyncio.run(main())


@pytest.mark.parametrize(
    "target",
    ["http://127.0.0.1:{port}/picture", "http://evil.test:{port}/picture", "//2130706433:{port}/picture"],
)
def test_a_redirect_to_a_private_address_is_refused(target):
    async def main():
        lookup = names({"cdn.test": ["127.0.0.1"], "evil.test": ["127.0.0.1"], "2130706433": ["127.0.0.1"]})
        async with fetching(lookup, media_hosts=("cdn.test", "public")) as (fetcher, web):
            url = web.url("redirect", "cdn.test") + "?to=" + target.format(port=web.port)
            await refused(fetcher, url, "may not be fetched from|not a URL")
            assert not web.hits["picture"]

    asyncio.run(main())


@pytest.mark.parametrize(
    "target", ["file:///etc/passwd", "data:image/png;base64,AA", "ftp://127.0.0.1/a", "http://a:b@127.0.0.1/"]
)
def test_a_redirect_to_another_kind_of_url_is_refused(target):
    async def main():
        async with fetching() as (fetcher, web):
            await refused(fetcher, web.url("redirect") + "?to=" + target, "not an http|user name")

    asyncio.run(main())


def test_a_redirect_within_the_rules_is_followed():
    async def main():
        async with fetching() as (fetcher, web):
            assert await fetcher.open(web.url("redirect") + "?to=/picture").read() == PICTURE

    asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://", "not a URL|not an http"),
        ("http:///a.png", "not an http|not a URL"),
        ("http://[::1/a.png", "not a URL"),
        ("http://host:99999/", "not a URL"),
        ("http://user:secret@127.0.0.1/", "user name or password"),
        ("ftp://host/a.png", "no URL of a supported kind"),
        ("a.png", "no URL of a supported kind"),
        ("iVBORw0KGgo=", "no URL of a supported kind"),
        ("javascript:alert(1)", "no URL of a supported kind"),
        ("http://unknown.test/a.png", "'unknown.test' is not known"),
        ("http://" + "a" * 300 + "/", "not known|not a URL"),
        ("http://a..b/", "not known|not a URL"),
    ],
)
def test_a_url_that_is_none_is_refused(url, says):
    async def main():
        async with fetching(names({}), media_hosts=None) as (fetcher, _):
            await refused(fetcher, url, says)

    asyncio.run(main())


def test_fetching_can_be_turned_off_but_not_data_urls():
    async def main():
        async with fetching(media_hosts=("none",)) as (fetcher, web):
            await refused(fetcher, web.url("picture"), "--media-hosts none")
            data = encoded(rgb())
            media = fetcher.open(" data:image/gif;base64," + base64.b64encode(data).decode())
            assert (await media.header()).width == 40
            assert await media.read() == data

    asyncio.run(main())


def test_files_below_the_allowed_folder_are_fetched(tmp_path):
    (tmp_path / "a.png").write_bytes(encoded(rgb()))

    async def main():
        async with fetching(allowed_media_path=str(tmp_path)) as (fetcher, _):
            assert (await fetcher.open(f"file://{tmp_path}/a.png").header()).height == 30

    asyncio.run(main())


def test_a_slow_host_takes_no_connection_from_another():
    async def main():
        lookup = names({"slow.test": ["127.0.0.1"], "quick.test": ["127.0.0.1"]})
        hosts = ("slow.test", "quick.test")
        async with fetching(lookup, media_hosts=hosts, max_connections_per_host=2) as (fetcher, web):
            slow = [fetcher.open(web.url("silent", "slow.test")) for _ in range(6)]
            await asyncio.sleep(0.1)
            assert web.open == 2
            quick = await asyncio.wait_for(fetcher.open(web.url("picture", "quick.test")).read(), 10)
            assert quick == PICTURE
            web.gate.set()
            assert [await media.read() for media in slow] == [PICTURE] * 6
            assert web.most_open == 3

    asyncio.run(main())


def test_who_waits_too_long_for_a_connection_is_told():
    async def main():
        limits = {"max_connections_per_host": 1, "fetch_timeout_s": 0.3, "stall_timeout_s": 5}
        async with fetching(**limits) as (fetcher, web):
            first, second = fetcher.open(web.url("silent")), fetcher.open(web.url("silent"))
            errors = [await _error(media) for media in (first, second)]
            assert {error.code for error in errors} == {"image_fetch_timeout"}

    asyncio.run(main())


async def _error(media):
    with pytest.raises(BadInput) as caught:
        await media.read()
    return caught.value


def test_release_ends_the_fetch_and_wakes_those_who_wait():
    async def main():
        async with fetching() as (fetcher, web):
            media = fetcher.open(web.url("drip"))
            waiting = asyncio.ensure_future(media.read())
            await asyncio.sleep(0.05)
            await media.release()
            await media.release()
            with pytest.raises(BadInput, match="ended"):
                await waiting
            await asyncio.sleep(0.1)
            assert web.open == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    "options",
    [{"max_image_pixels": 0}, {"max_image_pixels": 10**9}, {"max_images": -1}, {"fetch_timeout_s": 0}],
)
def test_limits_out_of_range_are_refused_at_start(options):
    with pytest.raises(ValueError):
        MediaLimits(**options)


def test_the_limit_of_images_is_read_from_its_flag():
    assert images_per_prompt("image=16") == 16
    for text in ("16", "image=", "image=-1", "video=3", "image=x"):
        with pytest.raises(ValueError, match="image=N"):
            images_per_prompt(text)
