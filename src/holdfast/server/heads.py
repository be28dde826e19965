"""Constant parts of HTTP/1.1 responses."""

__all__ = ["CONTINUE", "NOT_HTTP", "REASONS"]

REASONS = {
    200: b"OK", 202: b"Accepted", 204: b"No Content", 400: b"Bad Request", 401: b"Unauthorized", 403: b"Forbidden",
    404: b"Not Found", 405: b"Method Not Allowed", 409: b"Conflict", 413: b"Content Too Large",
    415: b"Unsupported Media Type", 421: b"Misdirected Request", 500: b"Internal Server Error",
    503: b"Service Unavailable",
}  # fmt: skip
NOT_HTTP = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 21\r\n"
    b"connection: close\r\n\r\nThis is not HTTP/1.1."
)
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
