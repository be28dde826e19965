"""Addresses in every spelling, and the patterns of rules for them."""

import pytest

from holdfast.domain.url_patterns import BadAddress, parse_address, parse_pattern

SAME = (
    "https://example.org/a/b",
    "HTTPS://EXAMPLE.ORG/a/b",
    "https://example.org./a/b",
    "https://example.org:443/a/b",
    "https://example.org:/a/b",
    "https://%65xample.org/a/b",
    "https://\uff45xample\u3002org/a/b",
    "https://example.org/a/./b",
    "https://example.org/x/../a/b",
    "https://example.org/../a/b",
    "https://example.org/x/%2e%2e/a/b",
    "https://example.org/%61/b",
    "https://example.org/x\\..\\a\\b",
    "https://example.org/a/b#c",
    " https://example.org/a/b ",
)
LOCAL = (
    "http://127.0.0.1/",
    "http://127.1",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0x7f.1/",
    "http://017700000001/",
    "http://0177.0.0.1/",
    "http://127.0.0.1.:80/",
    "http://①②⑦.0.0.1/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[0:0:0:0:0:FFFF:127.0.0.1]:80/",
)


@pytest.mark.parametrize("url", SAME)
def test_spellings_of_one_address_are_equal(url: str) -> None:
    assert parse_address(url).url == "https://example.org/a/b"


@pytest.mark.parametrize("url", LOCAL)
def test_spellings_of_one_ipv4_address_are_equal(url: str) -> None:
    assert parse_address(url).url == "http://127.0.0.1/"


def test_ipv6_ports_queries_and_international_names() -> None:
    assert parse_address("http://[2001:DB8:0::1]:8080/").url == "http://[2001:db8::1]:8080/"
    assert (
        parse_address("https://bücher.example/ü?ü=%c3%bc").url == "https://xn--bcher-kva.example/%C3%BC?%C3%BC=%C3%BC"
    )
    assert parse_address("https://a.example?x").url == "https://a.example/?x"
    assert parse_address("https://a.example/%2Fb%zz").url == "https://a.example/%2Fb%25zz"


@pytest.mark.parametrize(
    "url",
    [
        "https://user@example.org/",
        "https://user:pass@example.org/",
        "https://example.org\\@evil.org/",
        "https://exa mple.org/",
        "https://example.org\n/",
        "https://example..org/",
        "https://exa%00mple.org/",
        "https://1.2.3.4.5/",
        "https://[::1/",
        "https://[fe80::1%25eth0]/",
        "https://example.org:0/",
        "https://example.org:99999/",
        "ftp://example.org/",
        "//example.org/",
        "example.org",
        "https:///a",
    ],
)
def test_invalid_addresses_are_refused(url: str) -> None:
    with pytest.raises(BadAddress):
        parse_address(url)


@pytest.mark.parametrize(
    ("pattern", "url", "allows", "denies"),
    [
        ("https://example.org/*", "https://example.org/a?b", True, True),
        ("https://example.org/*", "https://evil.org/?https://example.org/", False, False),
        ("https://example.org/*", "https://example.org.evil.org/", False, False),
        ("https://example.org*", "https://example.org.evil.org/", True, True),
        ("https://example.org/*", "https://sub.example.org/", False, False),
        ("https://*.example.org/*", "https://sub.example.org/a", True, True),
        ("https://*.example.org/*", "https://example.org/", False, False),
        ("https://*.example.org/*", "https://evil.org/.example.org/", False, False),
        ("https://example.org/*", "http://example.org/", False, False),
        ("*://example.org/*", "http://example.org/", True, True),
        ("https://example.org/*", "https://example.org:8443/", False, False),
        ("https://example.org:*/*", "https://example.org:8443/", True, True),
        ("https://example.org:443/*", "https://example.org/", True, True),
        ("https://EXAMPLE.org./*", "https://example.org/", True, True),
        ("http://2130706433/*", "http://127.0.0.1/x", True, True),
        ("http://[::1]/*", "http://[0:0::1]/x", True, True),
        ("https://example.org/docs/*", "https://example.org/docs/../admin", False, False),
        ("https://example.org/docs/*", "https://example.org/docs/%2e%2e/admin", False, False),
        ("https://example.org/docs/*", "https://example.org/docs/..%2fadmin", False, False),
        ("https://example.org/docs/*", "https://example.org/docs/%252e%252e/admin", False, True),
        ("https://example.org/admin", "https://example.org/%61dmin", True, True),
        ("https://example.org/admin", "https://example.org/x/..%2fadmin", True, True),
        ("https://example.org/admin", "https://example.org/admin/users?x", False, True),
        ("https://example.org/admin", "https://example.org//admin", False, True),
        ("https://example.org/admin", "https://example.org/admin;x=1", False, True),
        ("https://example.org/admin", "https://example.org/%2561dmin", False, True),
        ("https://example.org/docs/*", "https://example.org/docs/..;/admin", False, True),
        ("https://example.org/docs/*", "https://example.org/docs?x", False, True),
        ("https://example.org/docs/*", "https://example.org/docsx", False, False),
        ("https://example.org", "https://example.org/", True, True),
        ("https://example.org", "https://example.org/a", False, True),
        ("https://example.org/a?b=*", "https://example.org/a?b=c", True, True),
        ("https://example.org/a?b=*", "https://example.org/a?c=d", False, False),
        ("https://example.org/a", "https://example.org/a?b", False, True),
        ("https://example.org/%2A", "https://example.org/b", False, False),
        ("https://a/[?]q", "https://a/?q", True, True),
    ],
)
def test_patterns_match_addresses(pattern: str, url: str, allows: bool, denies: bool) -> None:
    """An allow rule must match every decoding of a path; for a deny rule one is enough."""
    parsed, address = parse_pattern(pattern), parse_address(url)
    assert parsed.matches(address, leniently=False) is allows
    assert parsed.matches(address, leniently=True) is denies


@pytest.mark.parametrize(
    "pattern",
    ["ftp://a/", "https://u@a/", "https://a b/", "https://a/[a-z]", "https:///x", "https://a:b/", "https://a/#x"],
)
def test_patterns_that_cannot_match_are_refused(pattern: str) -> None:
    with pytest.raises(BadAddress):
        parse_pattern(pattern)
