import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gllm.multimodal.errors import BadInput
from gllm.multimodal.hosts import is_public, parse_hosts

PRIVATE = [
    "0.0.0.0",
    "10.0.0.1",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "169.254.169.254",
    "172.16.0.1",
    "192.168.1.1",
    "198.18.0.1",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::127.0.0.1",
    "fe80::1",
    "fec0::1",
    "fc00::1",
    "fd00:ec2::254",
    "ff02::1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "2002:7f00:1::1",
    "2002:a00:1::1",
    "2001:db8::1",
    "100::1",
]
PUBLIC = [
    "8.8.8.8",
    "93.184.216.34",
    "2606:2800:220:1::1",
    "::ffff:8.8.8.8",
    "64:ff9b::808:808",
    "2002:808:808::1",
]


def allows(entries, host, address, port=80):
    return parse_hosts(entries).allows(host, port, ipaddress.ip_address(address))


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_refused_by_default_and_to_patterns(address):
    assert not is_public(ipaddress.ip_address(address))
    assert not allows(None, "any.example", address)
    assert not allows(("public",), "any.example", address)
    assert not allows(("*",), "any.example", address)
    assert not allows(("*.example",), "any.example", address)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_allowed_by_default_and_to_matching_patterns(address):
    assert allows(None, "any.example", address)
    assert allows(("*.example",), "any.example", address)
    assert not allows(("*.example",), "other.test", address)
    assert not allows(("none",), "any.example", address)


@given(st.ip_addresses(v=4))
def test_mapped_and_translated_addresses_are_judged_as_the_address_inside(inner):
    for outer in (
        f"::ffff:{inner}",
        str(ipaddress.IPv6Address(int(ipaddress.ip_address("64:ff9b::")) + int(inner))),
    ):
        assert is_public(ipaddress.ip_address(outer)) == is_public(inner)


def test_a_listed_name_may_be_private_but_not_a_metadata_service():
    assert allows(("files.local",), "files.local", "10.0.0.1")
    assert not allows(("files.local",), "evil.local", "10.0.0.1")
    assert not allows(("files.local",), "files.local", "169.254.169.254")
    assert not allows(("files.local",), "files.local", "::ffff:169.254.169.254")
    assert not allows(("files.local",), "files.local", "fe80::1")
    assert not allows(None, "vm.example", "168.63.129.16")


def test_a_listed_address_or_network_is_allowed_whatever_it_is():
    assert allows(("169.254.169.254",), "x", "169.254.169.254")
    assert allows(("10.0.0.0/8",), "x", "10.9.9.9")
    assert allows(("10.0.0.0/8",), "x", "::ffff:10.9.9.9")
    assert not allows(("10.0.0.0/8",), "x", "11.0.0.1")
    assert not allows(("10.0.0.0/8",), "x", "8.8.8.8")
    assert allows(("10.0.0.0/8", "public"), "x", "8.8.8.8")


def test_a_port_narrows_a_rule():
    assert allows(("localhost:8080",), "localhost", "127.0.0.1", 8080)
    assert not allows(("localhost:8080",), "localhost", "127.0.0.1", 80)
    assert allows(("[::1]:8080",), "x", "::1", 8080)
    assert not allows(("[::1]:8080",), "x", "::1", 80)
    assert allows(("127.0.0.1:8080",), "x", "127.0.0.1", 8080)


def test_names_are_compared_without_case_and_final_dot():
    assert allows(("IMG.Example.Org.",), "img.example.org", "8.8.8.8")


@pytest.mark.parametrize("entry", ["http://a", "a/b", "a b", "", "host:99999", "host:x", "user@host"])
def test_what_is_no_rule_is_refused_at_start(entry):
    with pytest.raises(ValueError, match="--media-hosts"):
        parse_hosts((entry,))


def test_none_stands_alone():
    with pytest.raises(ValueError, match="stands alone"):
        parse_hosts(("none", "public"))


def test_a_refusal_says_what_to_do_and_keeps_the_allowed_addresses():
    good, bad = ipaddress.ip_address("8.8.8.8"), ipaddress.ip_address("10.0.0.1")
    assert parse_hosts(None).check("x", 80, [bad, good]) == [good]
    with pytest.raises(BadInput, match=r"'x' may not be fetched from.*data: URL"):
        parse_hosts(None).check("x", 80, [bad])
    with pytest.raises(BadInput, match="--media-hosts none"):
        parse_hosts(("none",)).check("x", 80, [good])
