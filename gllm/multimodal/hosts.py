"""Which hosts media may be fetched from: rules over names, and over the addresses they resolve to."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gllm.multimodal.errors import BadInput

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# Cloud metadata services; all but the last two are in private ranges anyway.
METADATA = tuple(
    ipaddress.ip_network(text)
    for text in ("169.254.0.0/16", "fe80::/10", "fd00:ec2::/32", "168.63.129.16/32", "100.100.100.200/32")
)


@dataclass(frozen=True, slots=True)
class NameRule:
    """A host name, perhaps with ``*``, and the one port it holds for (None: any)."""

    pattern: str
    port: int | None

    @property
    def exact(self) -> bool:
        return "*" not in self.pattern

    def matches(self, host: str, port: int) -> bool:
        return self.port in (None, port) and fnmatchcase(host, self.pattern)


@dataclass(frozen=True, slots=True)
class NetworkRule:
    """Addresses, and the one port they hold for (None: any)."""

    network: Network
    port: int | None

    def matches(self, address: Address, port: int) -> bool:
        return (
            self.port in (None, port) and address.version == self.network.version and address in self.network
        )


@dataclass(frozen=True, slots=True)
class HostRules:
    """What the operator allows; made by parse_hosts."""

    public: bool = True
    names: tuple[NameRule, ...] = ()
    networks: tuple[NetworkRule, ...] = ()

    def allows(self, host: str, port: int, address: Address) -> bool:
        """May this host be fetched at this address?

        A listed address or network: yes. A metadata or link-local address that is not: no. A name listed
        without ``*``: yes, even if private. Any other private address: no. A public one: if public hosts
        are allowed or a pattern matches the name.
        """
        address = _unmapped(address)
        if any(rule.matches(address, port) for rule in self.networks):
            return True
        if any(address in network for network in METADATA if network.version == address.version):
            return False
        matching = [rule for rule in self.names if rule.matches(host, port)]
        if any(rule.exact for rule in matching):
            return True
        return is_public(address) and (self.public or bool(matching))

    def check(self, host: str, port: int, addresses: list[Address]) -> list[Address]:
        """Those of a host's addresses that may be connected to; raises BadInput if there are none."""
        allowed = [address for address in addresses if self.allows(host, port, address)]
        if allowed:
            return allowed
        if not (self.public or self.names or self.networks):
            raise BadInput(
                "this server does not fetch images (--media-hosts none); send the image as a data: URL",
                code="invalid_image_url",
            )
        raise BadInput(
            f"the host {host!r} may not be fetched from at port {port}: it is not listed, or its address is "
            "private (--media-hosts); send the image as a data: URL",
            code="invalid_image_url",
        )

    @property
    def off(self) -> bool:
        """True when no host at all can be allowed."""
        return not (self.public or self.names or self.networks)


def parse_hosts(entries: tuple[str, ...] | None) -> HostRules:
    """Rules from the values of --media-hosts. None: all public hosts. ``none``: no host.

    Otherwise only what is listed: ``public`` (all public hosts), names (``img.example.org``), patterns
    (``*.example.org``), addresses and networks (``10.1.0.0/16``), each but ``public`` with an optional port
    (``localhost:8080``, ``[::1]:8080``). Raises ValueError for anything else.
    """
    if entries is None:
        return HostRules()
    entries = tuple(entry.strip().lower().rstrip(".") for entry in entries)
    if "none" in entries:
        if len(entries) > 1:
            raise ValueError("--media-hosts: none stands alone; drop it or the other entries")
        return HostRules(public=False)
    names: list[NameRule] = []
    networks: list[NetworkRule] = []
    for entry in entries:
        if entry == "public":
            continue
        text, port = _split_port(entry)
        try:
            networks.append(NetworkRule(ipaddress.ip_network(text, strict=False), port))
        except ValueError:
            if not text or any(ch in text for ch in "/:?#@[]% "):
                raise ValueError(f"--media-hosts: {entry!r} is no host name, pattern or network") from None
            names.append(NameRule(text, port))
    return HostRules("public" in entries, tuple(names), tuple(networks))


def is_public(address: Address) -> bool:
    """Can this address be reached by anybody on the internet? Addresses within addresses are unpacked."""
    address = _unmapped(address)
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not (address.is_multicast or address.is_reserved)
    if address in NAT64:
        return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    if address not in GLOBAL_V6 or not address.is_global:
        return False
    embedded = [address.sixtofour, *(address.teredo or ())]
    return all(is_public(inner) for inner in embedded if inner is not None)


def _unmapped(address: Address) -> Address:
    """``::ffff:10.0.0.1`` is 10.0.0.1."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _split_port(entry: str) -> tuple[str, int | None]:
    """``host:80`` and ``[::1]:80`` have a port; ``host``, ``::1`` and ``10.0.0.0/8`` have none."""
    if entry.startswith("["):
        host, _, port = entry[1:].partition("]")
        port = port.removeprefix(":")
    elif entry.count(":") == 1:
        host, _, port = entry.partition(":")
    else:
        return entry, None
    if port and not (port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f"--media-hosts: the port in {entry!r} is no number from 1 to 65535")
    return host, int(port) if port else None
