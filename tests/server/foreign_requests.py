"""Requests that a browser can be made to send, or a client without the token: none may have an effect."""

from holdfast.client.server_address import ServerAddress
from server.helpers import raw_request

__all__ = ["attempts", "with_origin"]

_CLIENT = "6f0b3a52-6d1e-4a8e-9c1e-0d4f5b6a7c8d"


def with_origin(address: ServerAddress, workspace: str, session: str, origin: str) -> bytes:
    """Build a prompt request of a web page that has the token."""
    body = b'{"session_id":"%s","prompt":"evil","run_id":"evil"}' % session.encode()
    headers = [f"Host: 127.0.0.1:{address.port}", f"Authorization: Bearer {address.token}", f"Origin: {origin}"]
    return raw_request(f"/v1/workspaces/{workspace}/agent", "POST", body, [*headers, "Content-Type: application/json"])


def attempts(address: ServerAddress, workspace: str, session: str) -> dict[str, bytes]:
    """Return requests that a web page or a client without the token could send."""
    port, token = address.port, address.token
    host, bearer = f"Host: 127.0.0.1:{port}", f"Authorization: Bearer {token}"
    base = f"/v1/workspaces/{workspace}"
    agent, json_type = f"{base}/agent", "Content-Type: application/json"
    body = b'{"session_id":"%s","prompt":"evil","run_id":"evil"}' % session.encode()
    create = b'{"id":"","path":"/","client_id":"%s"}' % _CLIENT.encode()

    def post(*headers: str, path: str = agent, method: str = "POST", content: bytes | None = body) -> bytes:
        return raw_request(path, method, content, headers)

    found = {
        "no token": post(host, json_type),
        "empty bearer": post(host, json_type, "Authorization: Bearer "),
        "empty header": post(host, json_type, "Authorization:"),
        "wrong token": post(host, json_type, "Authorization: Bearer " + "x" * 43),
        "token and more": post(host, json_type, bearer + "x"),
        "token cut": post(host, json_type, bearer[:-1]),
        "token alone": post(host, json_type, f"Authorization: {token}"),
        "basic": post(host, json_type, f"Authorization: Basic {token}"),
        "token in the query": post(host, json_type, path=f"{agent}?token={token}"),
        "access_token in the query": post(host, json_type, path=f"{agent}?access_token={token}"),
        "authorization in the query": post(host, json_type, path=f"{agent}?authorization=Bearer%20{token}"),
        "token in a cookie": post(host, json_type, f"Cookie: token={token}; Authorization=Bearer {token}"),
        "token in another header": post(host, json_type, f"X-Authorization: Bearer {token}"),
        "proxy authorization": post(host, json_type, f"Proxy-Authorization: Bearer {token}"),
        "forwarded for": post(host, json_type, "X-Forwarded-For: 127.0.0.1", "X-Real-IP: 127.0.0.1"),
        "forwarded for nobody": post(host, json_type, "X-Forwarded-For: ", "Forwarded: for=unix:"),
        "no host": b"POST %s HTTP/1.1\r\n%s\r\n%s\r\nContent-Length: %d\r\n\r\n%s"
        % (agent.encode(), json_type.encode(), bearer.encode(), len(body), body),
        "http/1.0 without a host": b"POST %s HTTP/1.0\r\n%s\r\n%s\r\nContent-Length: %d\r\n\r\n%s"
        % (agent.encode(), json_type.encode(), bearer.encode(), len(body), body),
        "two hosts": post("Host: evil.example", host, json_type, bearer),
        "form": post(host, "Content-Type: application/x-www-form-urlencoded", bearer, content=b"prompt=evil"),
        "form with json": post(host, "Content-Type: application/x-www-form-urlencoded", bearer),
        "multipart": post(host, "Content-Type: multipart/form-data; boundary=x", bearer),
        "simple post": post(host, "Content-Type: text/plain", bearer),
        "simple post with charset": post(host, "Content-Type: text/plain;application/json", bearer),
        "no content type": post(host, bearer),
        "lookalike type": post(host, "Content-Type: application/json-patch+json", bearer),
        "method override": raw_request(f"{agent}?_method=POST", "GET", None, [host, "X-HTTP-Method-Override: POST"]),
        "override to delete": post(host, "X-HTTP-Method: DELETE", path=f"{base}/sessions/{session}"),
        "preflight": raw_request(agent, "OPTIONS", None, [host, "Origin: https://evil.example"]),
        "cancel by get": raw_request(f"{base}/agent/sessions/{session}/cancel", "GET", None, [host, bearer]),
        "create without token": post(host, json_type, path="/v1/workspaces", content=create),
        "stop without token": post(host, json_type, path="/v1/control", content=b'{"command":"stop","force":true}'),
        "delete without token": raw_request(f"{base}/sessions/{session}", "DELETE", None, [host]),
        "retire without token": raw_request(f"/v1/clients/{_CLIENT}", "DELETE", None, [host]),
        "config without token": post(host, json_type, path=f"{base}/config/set", content=b'{"key":"a","value":1}'),
        "upgrade": raw_request(f"{base}/events", "GET", None, [host, "Connection: Upgrade", "Upgrade: websocket"]),
        "events without token": raw_request(f"{base}/events?since=0", "GET", None, [host, "Accept: text/event-stream"]),
        "health without token": raw_request("/v1/health", "GET", None, [host]),
    }
    for name in (
        "evil.example", f"evil.example:{port}", "127.0.0.1", "localhost", "", f"127.0.0.1.evil.example:{port}",
        f"localhost.evil.example:{port}", f"127.0.0.1:{port}.evil.example", f"127.0.0.2:{port}", f"0.0.0.0:{port}",
        f"user@127.0.0.1:{port}", f"127.0.0.1:{port},evil.example", "holdfast.localhost", "api.crush.localhost",
        f"127.0.0.1:{port + 1}",
    ):  # fmt: skip
        found[f"host {name}"] = post(f"Host: {name}", json_type, bearer)
    for origin in (
        "null",
        "https://evil.example",
        f"https://127.0.0.1:{port}",
        f"http://127.0.0.1:{port + 1}",
        f"http://127.0.0.1:{port}.evil.example",
        f"http://localhost:{port}",
        "file://",
        "",
    ):
        found[f"origin {origin}"] = post(host, json_type, bearer, f"Origin: {origin}")
    return found
