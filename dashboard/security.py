"""One gate in front of every route, and the headers of every answer.

Sources: OWASP on DNS rebinding and CSRF; Fetch metadata (W3C); MLflow CVE-2025-14279 (Host), CVE-2025-1473 (CSRF). Dash
alone answers any Host with 200.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from http import HTTPStatus

from flask import Flask, Response, request

from dashboard.settings import LOOPBACK_HOSTS, Settings

COOKIE = "msmon_token"
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_SAME_SITE = frozenset({"same-origin", "none"})


def guard(server: Flask, settings: Settings, script_hashes: Sequence[str]) -> None:
    """Install the gate and the headers; call it before the first request, after all routes and callbacks are known."""
    allowed = LOOPBACK_HOSTS | settings.allowed_hosts | ({settings.host} - {"0.0.0.0", "::"})
    policy = content_security_policy(script_hashes)

    @server.before_request
    def gate() -> Response | None:
        host = host_name(request.headers.get("Host", ""))
        if host not in allowed and not (settings.token and not settings.loopback_only and not settings.allowed_hosts):
            return _refuse(
                HTTPStatus.BAD_REQUEST, f"Host {host!r} is not allowed; start msmon-dash with --allowed-host"
            )
        if request.method not in _SAFE_METHODS and not _same_origin():
            return _refuse(HTTPStatus.FORBIDDEN, "cross-site request refused")
        if settings.token and not _knows(settings.token):
            return _refuse(HTTPStatus.UNAUTHORIZED, "open the page with ?token=..., or send Authorization: Bearer ...")
        return None

    @server.after_request
    def harden(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = policy
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["Cross-Origin-Opener-Policy"] = "same-origin"
        if settings.token and request.args.get("token") and response.status_code < 400:
            response.set_cookie(COOKIE, settings.token, httponly=True, samesite="Strict", path=settings.path_prefix)
        return response


def content_security_policy(script_hashes: Sequence[str]) -> str:
    """No inline script but Dash's own (by hash), nothing from other hosts, no foreign frames (Jupyter's proxy is same-origin)."""
    scripts = " ".join(["'self'", *script_hashes])
    return (
        f"default-src 'self'; script-src {scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "font-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'self'"
    )


def host_name(header: str) -> str:
    """The name in a Host header without its port, lower case; brackets of IPv6 taken off."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0] if text.count(":") == 1 else text


def _same_origin() -> bool:
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site in _SAME_SITE
    origin = request.headers.get("Origin")
    return origin is None or origin.partition("://")[2] == request.headers.get("Host")


def _knows(token: str) -> bool:
    scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
    given = [request.args.get("token"), request.cookies.get(COOKIE), bearer if scheme.lower() == "bearer" else None]
    return any(hmac.compare_digest(one.encode("utf-8", "replace"), token.encode()) for one in given if one)


def _refuse(status: HTTPStatus, reason: str) -> Response:
    return Response(f"{status.value} {status.phrase}: {reason}\n", status, mimetype="text/plain")
