"""Private addresses, redacted secrets, and certificate checks against the requested host."""

import asyncio
import gzip
import ssl
import subprocess
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.config.redaction import HIDDEN, redact_text
from holdfast.domain.errors import ToolError
from holdfast.workspace.web_client import WebClient, WebResponse, WebTarget, _proxy, address_note, parse_target
from stream_servers import stream_server
from workspace.web_server import WebServer


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "localhost", "LOCALHOST.", "a.localhost", "printer.local", "10.1.2.3", "172.16.0.1", "192.168.1.1",
        "169.254.169.254", "100.64.0.1", "0.0.0.0", "[::1]", "[fe80::1]", "[fd00::1]", "[::ffff:10.0.0.1]", "127.1",
        "2130706433", "0x7f.1", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "metadata.google.internal", "224.0.0.1",
        "192.0.0.192", "[fec0::1]", "[64:ff9b:1::7f00:1]", "[::127.0.0.1]",
    ],
)  # fmt: skip
def test_private_hosts_are_detected_without_network(host: str) -> None:
    assert parse_target(f"http://{host}:8080/x").note


@pytest.mark.parametrize("host", ["example.org", "8.8.8.8", "[2606:4700::1111]", "localhost.example.org", "10.example"])
def test_public_hosts(host: str) -> None:
    assert parse_target(f"https://{host}/").note == ""


def test_cloud_metadata_hosts() -> None:
    assert "credentials" in address_note("169.254.169.254")
    for address in ("127.0.0.1", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1"):
        assert address_note(address) == f"this computer ({address})"


def test_targets() -> None:
    target = parse_target(" https://Example.org/a?b#c ")
    assert (target.scheme, target.host, target.port) == ("https", "example.org", 443)
    assert target.url == "https://example.org/a?b"
    for url in ("", "file:///x", "http:///x", "http://x:99999/", "http://x\r\nHost: y/", "//x", "javascript:1"):
        with pytest.raises(ToolError):
            parse_target(url)


def make_certificate(folder: Path, host: str) -> tuple[str, str]:
    key, certificate = str(folder / "key.pem"), str(folder / "cert.pem")
    names = ["-subj", f"/CN={host}", "-addext", f"subjectAltName=DNS:{host}"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run([*command, "-keyout", key, "-out", certificate, *names], check=True, capture_output=True)
    return key, certificate


async def test_certificate_is_checked_against_host_name(tmp_path: Path) -> None:
    key, certificate = await asyncio.to_thread(make_certificate, tmp_path, "good.example")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = WebServer()
    server.page("/", b"hello", "text/plain")

    async def resolve(host: str, _: int) -> Sequence[str]:
        # The first of its addresses does not answer.
        return ["127.0.0.2", "127.0.0.1"] if host == "good.example" else ["127.0.0.1"]

    async def agree(_: WebTarget) -> None:
        return

    web = WebClient(resolve, lambda: ssl.create_default_context(cafile=certificate))
    async with stream_server(server.serve, tls=context) as port:
        async with web.get(parse_target(f"https://good.example:{port}/"), agree, {}) as answer:
            assert await answer.read(100) == (b"hello", False)
        with pytest.raises(ToolError, match="could not be reached"):
            async with web.get(parse_target(f"https://bad.example:{port}/"), agree, {}):
                pass


# Redirects, proxies and sizes, without a network

PRIVATE = {"inside.example": "10.0.0.9"}


class Hops:
    """A client whose responses are given: for each address the one it redirects to, or nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, redirects: dict[str, str]) -> None:
        self.asked: list[tuple[str, bool, bool]] = []
        self._redirects = redirects
        self.web = WebClient(self._resolve)
        self.web._http_library = object()
        monkeypatch.setattr(self.web, "_open", self._open)

    async def _resolve(self, host: str, _: int) -> Sequence[str]:
        return [PRIVATE.get(host, "93.184.215.14")]

    @asynccontextmanager
    async def _open(self, target: WebTarget, *_: object) -> AsyncIterator[SimpleNamespace]:
        location = self._redirects.get(target.url)
        headers = {"location": location} if location else {}
        yield SimpleNamespace(status_code=302 if location else 200, headers=headers, charset_encoding=None)

    async def consent(self, target: WebTarget) -> None:
        self.asked.append((target.url, bool(target.note), target.is_agreed))

    async def get(self, url: str) -> str:
        async with self.web.get(parse_target(url), self.consent, {}) as answer:
            return answer.url


PUBLIC, SECURE = "http://a.example/", "https://a.example/"


@pytest.mark.parametrize(
    ("chain", "asked"),
    [
        ([PUBLIC], []),
        ([PUBLIC, "http://a.example/b"], [("http://a.example/b", False, True)]),
        ([PUBLIC, SECURE], [(SECURE, False, True)]),
        ([SECURE, PUBLIC], [(PUBLIC, False, False)]),
        ([PUBLIC, "http://a.example:8080/"], [("http://a.example:8080/", False, False)]),
        (["http://a.example:443/", SECURE], [(SECURE, False, False)]),
        ([PUBLIC, "http://b.example/"], [("http://b.example/", False, False)]),
        (["http://inside.example/"], [("http://inside.example/", True, False)]),
        (
            ["http://inside.example/", "http://inside.example/b"],
            [("http://inside.example/", True, False), ("http://inside.example/b", False, True)],
        ),
        (
            [PUBLIC, "http://inside.example/"],
            [("http://inside.example/", False, False), ("http://inside.example/", True, False)],
        ),
        (["http://localhost/"], []),
        (
            ["http://localhost/", "https://localhost/"],
            [("https://localhost/", True, True), ("https://localhost/", True, False)],
        ),
        (["http://localhost/", "http://localhost:8080/"], [("http://localhost:8080/", True, False)]),
    ],
)
async def test_consent_along_redirects(
    chain: list[str], asked: list[tuple[str, bool, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An approval covers one host and port; a private address needs its own."""
    hops = Hops(monkeypatch, dict(pairwise(chain)))
    assert await hops.get(chain[0]) == chain[-1]
    assert hops.asked == asked


@pytest.mark.parametrize(("count", "is_followed"), [(9, True), (10, False)])
async def test_redirects_are_followed_up_to_a_number(
    count: int, is_followed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [f"http://a.example/{number}" for number in range(count + 1)]
    hops = Hops(monkeypatch, dict(pairwise(urls)))
    if is_followed:
        assert await hops.get(urls[0]) == urls[-1]
    else:
        with pytest.raises(ToolError, match="more than 10 times"):
            await hops.get(urls[0])


@pytest.mark.parametrize(
    ("url", "environment", "proxy"),
    [
        (PUBLIC, {}, ""),
        (PUBLIC, {"HTTP_PROXY": "p"}, "p"),
        (PUBLIC, {"https_proxy": "p"}, ""),
        (SECURE, {"https_proxy": "p", "all_proxy": "q"}, "p"),
        (PUBLIC, {"https_proxy": "p", "ALL_PROXY": "q"}, "q"),
        (PUBLIC, {"http_proxy": "", "all_proxy": "q"}, "q"),
        ("http://localhost/", {"http_proxy": "p"}, ""),
        ("http://10.0.0.1/", {"all_proxy": "p"}, ""),
        *(
            (PUBLIC, {"http_proxy": "p", "no_proxy": names}, "")
            for names in ("*", "a.example", "x, .EXAMPLE", "example", "A.Example ,y")
        ),
        *((PUBLIC, {"http_proxy": "p", "no_proxy": names}, "p") for names in ("", "b.example", "ple", "x.a.example")),
    ],
)
def test_the_proxy_of_a_request(url: str, environment: dict[str, str], proxy: str) -> None:
    assert _proxy(parse_target(url), environment) == proxy


@pytest.mark.parametrize(("limit", "expected"), [(5, (b"hello", False)), (4, (b"hell", True)), (6, (b"hello", False))])
@pytest.mark.parametrize("encoding", ["", "identity", "gzip", "deflate"])
async def test_a_body_up_to_a_limit(encoding: str, limit: int, expected: tuple[bytes, bool]) -> None:
    packed = {"gzip": gzip.compress(b"hello"), "deflate": zlib.compress(b"hello")}.get(encoding, b"hello")
    assert await response_of(packed, encoding).read(limit) == expected


@pytest.mark.parametrize("encoding", ["gzip", "br"])
async def test_a_body_that_cannot_be_unpacked(encoding: str) -> None:
    with pytest.raises(ToolError):
        await response_of(gzip.compress(b"hello")[:-3], encoding).read(100)


def response_of(body: bytes, encoding: str) -> WebResponse:
    async def pieces() -> AsyncIterator[bytes]:
        for place in range(0, len(body), 3):
            yield body[place : place + 3]

    headers = {"content-encoding": encoding, "content-length": str(len(body))}
    response = SimpleNamespace(status_code=200, headers=headers, charset_encoding=None, aiter_raw=pieces)
    return WebResponse(cast(Any, response), PUBLIC)


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abcdef123456789",
        '{"api_key": "s3cr3t-value"}',
        "OPENAI_API_KEY=s3cr3t-value x",
        "password: s3cr3t-value",
        "https://user:s3cr3t-value@example.org/x",
        f"using sk-{'s3cr3t' * 4} now",
        "ghp_abcdefghijklmnopqrstuvwxyz0123",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NSJ9.s3cr3t-value",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\ns3cr3t-value\n-----END RSA PRIVATE KEY-----",
        "client_secret='s3cr3t-value'",
        "x-auth-token=s3cr3t-value&y=1",
    ],
)
def test_secrets_are_hidden(text: str) -> None:
    hidden = redact_text(text)
    assert HIDDEN in hidden
    for secret in ("s3cr3t", "abcdef", "MIIE", "ghp_a"):
        assert secret not in hidden


def test_other_text_stays() -> None:
    text = "2026-01-01 INFO opened /work/tokenizer.py in 3 ms; 120 tokens used"
    assert redact_text(text) == text
    # A long line without an end does not cause backtracking.
    assert redact_text("a" * 300_000) == "a" * 300_000
    for trap in ("token", "a.b-", "sk-", "eyJaaaaaaaaaa-", "://a:", "bearer "):
        assert redact_text(trap * 5_000)
