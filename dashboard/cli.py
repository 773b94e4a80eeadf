"""The ``msmon-dash`` command: arguments, checks, start, clean end."""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dashboard.settings import DEFAULT_HOST, DEFAULT_PORT, LOOPBACK_HOSTS, PORT_TRIES, Settings
from monitor_core import __version__

if TYPE_CHECKING:
    from dashboard.app import Service

#: Words for the state of a log directory that is not (yet) of use, with what to do.
ROOT_HINTS = {
    "missing": "does not exist (yet); expected the log_dir of a Monitor or its parent: it is picked up as soon as it appears",
    "empty": "holds no monitor files (yet); expected files such as monitor_00001.json: they are picked up as soon as they appear",
    "not_a_directory": "is not a directory; expected the log_dir of a Monitor or its parent: give the directory, not a file in it",
    "unreadable": "cannot be read; expected a readable directory: change its permissions or run as its owner",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status (2: wrong arguments or a log directory that cannot be used)."""
    arguments = _parser().parse_args(_dashed(sys.argv[1:] if argv is None else argv))
    settings = _settings(arguments)
    if isinstance(settings, str):
        print(f"msmon-dash: {settings}", file=sys.stderr)
        return 2
    if settings.receive:
        try:
            settings.logdirs[0].mkdir(parents=True, exist_ok=True)
        except OSError as error:
            print(f"msmon-dash: --receive: {settings.logdirs[0]} cannot be made: {error.strerror}", file=sys.stderr)
            return 2
    refused = _check_roots(settings.logdirs)
    if refused:
        return 2
    if arguments.inspect:
        from dashboard.tools import inspect

        return max(inspect(root) for root in settings.logdirs)
    return _serve(settings, listen_socket=None, fixed_port=arguments.port is not None, browse=not arguments.no_browser)


def _dashed(argv: Sequence[str]) -> list[str]:
    """``--bind_all`` as ``--bind-all``: users come from tools that write either."""
    return [
        name.replace("_", "-") + equals + value if item.startswith("--") else item
        for item in argv
        for name, equals, value in [item.partition("=")]
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="msmon-dash", description="Live dashboard of MindSpore trainings, read from the files of a Monitor."
    )
    add = parser.add_argument
    add("logdir", nargs="*", metavar="DIR", help="log directory; the same as --logdir")
    add("--logdir", action="append", dest="more", metavar="DIR", default=[], help="may be repeated (MSMON_LOGDIR)")
    add("--host", default=os.environ.get("MSMON_HOST", DEFAULT_HOST), help="address to listen on (MSMON_HOST)")
    add("--bind-all", action="store_true", help="listen on all addresses; needs a token")
    add("--port", type=int, help=f"default: the first free one from {DEFAULT_PORT} on (MSMON_PORT)")
    add(
        "--token",
        help="asked for on every request; prefer MSMON_TOKEN, which other users do not see in the process list",
    )
    add("--allowed-host", action="append", default=[], metavar="NAME", help="further Host name, for a reverse proxy")
    add("--reload-interval", type=float, default=1.0, metavar="SECONDS", help="time between scans without file events")
    add("--path-prefix", default="/", help="path under which a reverse proxy serves the page")
    add("--window-title", default="msmon")
    add("--theme", choices=("light", "dark", "auto"), default="auto")
    add("--language", choices=("zh", "en", "auto"), default="auto")
    add("--inspect", action="store_true", help="print what was found and exit")
    add("--no-browser", action="store_true", help="do not open a browser")
    add("--receive", action="store_true", help="take what trainings push (http_endpoint) and write it to the first DIR")
    add(
        "--memory-budget",
        metavar="SIZE",
        help="of the records, such as 2G; above it old ones go to files (default: no limit)",
    )
    add(
        "--cache-dir",
        metavar="DIR",
        help="for those files, outside the log directories (default: the system's temporary one)",
    )
    add("--read-only", action="store_true", help="the default: nothing is written to the log directory")
    add("--version", action="version", version=f"msmon {__version__}")
    return parser


def _settings(arguments: argparse.Namespace) -> Settings | str:
    """The settings, or what is wrong with the arguments."""
    named = [*arguments.logdir, *arguments.more] or os.environ.get("MSMON_LOGDIR", "").split(os.pathsep)
    roots = [Path(name).expanduser() for name in named if name]
    if not roots:
        return "no log directory: expected --logdir DIR (the log_dir of a Monitor or its parent), or MSMON_LOGDIR"
    host = "0.0.0.0" if arguments.bind_all else arguments.host
    token = arguments.token or os.environ.get("MSMON_TOKEN") or None
    if host not in LOOPBACK_HOSTS and not token:
        return f"listening on {host} lets other machines in: set MSMON_TOKEN (or --token) to a secret of your choice"
    if arguments.receive and arguments.read_only:
        return "--receive writes to the log directory and --read-only forbids it: give one of them"
    if arguments.reload_interval <= 0:
        return f"--reload-interval {arguments.reload_interval}: expected seconds above 0"
    port = arguments.port
    if port is None and os.environ.get("MSMON_PORT"):
        if not os.environ["MSMON_PORT"].isdigit():
            return f"MSMON_PORT={os.environ['MSMON_PORT']!r}: expected a port number"
        port = arguments.port = int(os.environ["MSMON_PORT"])
    if port is not None and not 0 <= port <= 65535:
        return f"--port {port}: expected 0 to 65535"
    memory = _memory(arguments, roots)
    if isinstance(memory, str):
        return memory
    prefix = "/" + arguments.path_prefix.strip("/")
    return Settings(
        tuple(roots), host, DEFAULT_PORT if port is None else port, token, frozenset(arguments.allowed_host),
        arguments.reload_interval, prefix if prefix == "/" else prefix + "/", arguments.window_title,
        arguments.theme, arguments.language, arguments.receive, *memory,
    )  # fmt: skip


def _memory(arguments: argparse.Namespace, roots: Sequence[Path]) -> tuple[int | None, Path | None] | str:
    """Memory budget in bytes and cache directory, or what is wrong with them."""
    text, cache = arguments.memory_budget, arguments.cache_dir and Path(arguments.cache_dir).expanduser()
    found = re.fullmatch(r"(\d{1,15})([KMGT]?)(i?B)?", text or "", re.IGNORECASE)
    if text is not None and (found is None or not int(found[1])):
        return f"--memory-budget {text}: expected a size such as 500M or 2G"
    if cache and any(cache.resolve().is_relative_to(root.resolve()) for root in roots):
        return f"--cache-dir {cache}: is inside a log directory, to which nothing is written: choose another one"
    budget = int(found[1]) << 10 * " KMGT".index(found[2].upper() or " ") if found else None
    return budget, cache or None


def _check_roots(roots: Sequence[Path]) -> bool:
    """Say what is wrong with the log directories; True when one of them can never work."""
    from dashboard.ingest.ingester import root_problem

    refused = False
    for root in roots:
        problem = root_problem(root)
        if problem is None:
            continue
        fatal = problem.code in ("not_a_directory", "unreadable")
        refused = refused or fatal
        detail = f" ({problem.detail})" if problem.detail else ""
        print(f"msmon-dash: {'error' if fatal else 'note'}: {root} {ROOT_HINTS[problem.code]}{detail}", file=sys.stderr)
    return refused


def bind(host: str, port: int, *, fixed: bool) -> socket.socket:
    """A listening socket; unless ``fixed``, the first free port from ``port`` on. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in [port] if fixed else range(port, port + PORT_TRIES):
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, candidate))
            listening.listen(128)
        except OSError:
            listening.close()
            if fixed:
                raise
            continue
        return listening
    raise OSError(f"no free port from {port} to {port + PORT_TRIES - 1}")


def _serve(settings: Settings, *, listen_socket: socket.socket | None, fixed_port: bool, browse: bool) -> int:
    try:
        listening = listen_socket or bind(settings.host, settings.port, fixed=fixed_port)
    except OSError as error:
        print(
            f"msmon-dash: cannot listen on {settings.host} port {settings.port}: {error.strerror or error}; "
            "choose another --port or leave it out to take a free one",
            file=sys.stderr,
        )
        return 2
    from dashboard.app import build

    service = build(settings, listening)
    _end_on_signals(service)
    name = "127.0.0.1" if settings.host in ("0.0.0.0", "localhost") else settings.host
    shown = f"[{name}]" if ":" in name else name
    url = f"http://{shown}:{listening.getsockname()[1]}{settings.path_prefix}"
    print(f"msmon-dash: {url}  (Ctrl+C ends it)", flush=True)
    if settings.receive:
        print(f"msmon-dash: trainings push to {url}api/records; written to {settings.logdirs[0]}", flush=True)
    if browse and sys.stdout.isatty() and (os.environ.get("DISPLAY") or sys.platform in ("darwin", "win32")):
        threading.Timer(0.5, webbrowser.open, [url]).start()
    service.run()
    return 0


def _end_on_signals(service: Service) -> None:
    def end(number: int, frame: object) -> None:
        service.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)


if __name__ == "__main__":
    sys.exit(main())
