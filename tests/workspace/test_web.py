"""Private addresses, redacted secrets, and certificate checks against the requested host."""

import asyncio
import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.config.redaction import HIDDEN, redact_text
from holdfast.domain.errors import ToolError
from holdfast.workspace.web_client import Target, WebClient, address_note, parse_target
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

    async def agree(_: Target) -> None:
        return

    web = WebClient(resolve, lambda: ssl.create_default_context(cafile=certificate))
    async with stream_server(server.serve, tls=context) as port:
        async with web.get(parse_target(f"https://good.example:{port}/"), agree, {}) as answer:
            assert await answer.read(100) == (b"hello", False)
        with pytest.raises(ToolError, match="could not be asked"):
            async with web.get(parse_target(f"https://bad.example:{port}/"), agree, {}):
                pass


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
