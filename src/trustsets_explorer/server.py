"""The only file that speaks HTTP: who may ask, how much, and what comes back.

Everybody on this machine can reach a local port, and every page in a browser can send requests to
it. So a request needs the token of the address (in the query or the cookie that the page sets), the
right Host (against rebinding of names) and the right Origin; bodies are small JSON objects with
exactly the expected names. Connections, their silence, decoders of images and lines of the log are
limited, so that nobody without the token can keep the owner out or fill memory or disk.
"""

import asyncio
import collections
import hmac
import json
import logging
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import resources
from typing import Any, final

import h11
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from trustsets.errors import InputError, TrustSetsError
from trustsets.report import page_styles
from trustsets_explorer import exports, samples
from trustsets_explorer.samples import Gallery
from trustsets_explorer.session import (
    Cache,
    Check,
    Session,
    Superseded,
    answer,
    first_answer,
    nearest_alphas,
    words,
)
from trustsets_explorer.state import State

# Connections that the kernel holds until they are accepted, and open ones. Together they stay
# below 256, the smallest usual limit of open files.
BACKLOG, _MOST_CONNECTIONS = 32, 100
# A request must have come as a whole after so many seconds.
_REQUEST_SECONDS = 5.0
# The log takes at most so many records in so many seconds.
_MOST_RECORDS, _RECORD_SECONDS = 20, 60.0
_MOST_BYTES = 16 << 10
# Small images in the cache, each below a megabyte.
_MOST_IMAGES = 64
# Lanes of questions: at most eight for each open page, and one for the time of the last of all.
_MOST_LANES, _REQUESTS = 256, "requests"
# Seconds without a question after which the next moves of alpha are prepared.
_IDLE = 0.3
_LARGEST_WHOLE = 2**31
_CLIENT = re.compile(r"[0-9a-f]{8,32}")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
# Files of the page, besides itself.
_SCRIPTS = ("dom", "parameters", "maps", "charts", "samples", "explorer")
_FILES = ("icon.svg", "explorer.css", *(f"{name}.js" for name in _SCRIPTS))


class _RateLimit(logging.Filter):
    """Passes the first records of each period."""

    def __init__(self) -> None:
        super().__init__()
        self._times = collections.deque[float](maxlen=_MOST_RECORDS)

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if len(self._times) == _MOST_RECORDS and now - self._times[0] < _RECORD_SECONDS:
            return False
        self._times.append(now)
        return True


_log = logging.getLogger(__name__)
_log.addFilter(_RateLimit())


def log_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of the event loop, for instance that no file is left for a connection."""
    _log.error("%s", context["message"], exc_info=context.get("exception"))


@final
class LimitedProtocol(H11Protocol):
    """A connection that must send its request in time, and gives way when there are too many.

    Each one holds an open file, of which a process has few; uvicorn waits without an end.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room, and start the clock."""
        if len(self.connections) >= _MOST_CONNECTIONS:
            self._drop_oldest()
        super().connection_made(transport)
        self._limit_wait()

    def data_received(self, data: bytes) -> None:
        """Stop the clock if a request is complete."""
        super().data_received(data)
        self._limit_wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._end_wait()
        super().connection_lost(exc)

    def _is_waiting(self) -> bool:
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def _limit_wait(self) -> None:
        """Start the clock of a request; further bytes of the same request do not restart it."""
        if not self._is_waiting():
            self._end_wait()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(_REQUEST_SECONDS, self._give_up)

    def _end_wait(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        # The request may have ended meanwhile; then the time-out of idle connections counts.
        if self._is_waiting() and self.timeout_keep_alive_task is None:
            self.transport.abort()

    def _drop_oldest(self) -> None:
        """Close the connection that has waited longest: the newest is likelier the owner's."""
        waiting = [
            other
            for other in self.connections
            if isinstance(other, LimitedProtocol) and other._deadline is not None
        ]
        if waiting:
            oldest = min(waiting, key=lambda other: other._deadline.when())  # type: ignore[union-attr]
            oldest._end_wait()
            oldest.transport.abort()
            self.connections.discard(oldest)


@final
@dataclass(frozen=True, eq=False)
class _Shared:
    """What all requests share.

    One thread computes, so that predictors need no locks; a second one does what nobody waits for;
    a third decodes images, one at a time, because one may take 200 MB.
    """

    session: Session
    gallery: Gallery
    names: dict[str, str]
    worker: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    idle: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    decoder: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    images: Cache = field(default_factory=lambda: Cache(_MOST_IMAGES))
    newest: Cache = field(default_factory=lambda: Cache(_MOST_LANES))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def check(self, lanes: tuple[str, ...], generation: int) -> None:
        """Raise `Superseded` if a page has asked something newer, or the explorer ends."""
        with self.lock:
            newer = any(self.newest.get(lane, 0) > generation for lane in lanes)
        if newer or self.session.is_closed.is_set():
            raise Superseded

    def image(self, part: str, row: int) -> bytes | None:
        """A small image of a sample, decoded once."""
        return self.images.get_or_make((part, row), lambda: self.gallery.image(part, row))

    def note(self, lane: str, generation: int) -> None:
        """Remember the newest question in a lane."""
        with self.lock:
            latest = self.newest.get_or_make(lane, lambda: 0)
            self.newest[lane] = max(latest, generation)


@final
@dataclass(frozen=True, eq=False)
class Query:
    """One question of a page: a state, one of its methods, a bin, or a test sample."""

    action: str
    state: State
    check: Check
    index: int
    table: Any
    bin: Any
    row: int


def make_app(
    session: Session, gallery: Gallery, token: str, port: int, names: dict[str, str]
) -> ASGIApp:
    """The application; `names` are the files that the data came from, for copied code."""
    shared = _Shared(session, gallery, names)
    routes = [
        Route("/", partial(_file, "explorer.html"), methods=["GET"]),
        Route("/image/{part}/{row}", partial(_image, shared), methods=["GET"]),
        Route("/start", partial(_start, shared), methods=["GET"]),
        Route("/api/{action}", partial(_act, shared), methods=["POST"]),
        *(Route(f"/{name}", partial(_file, name), methods=["GET"]) for name in _FILES),
        *(
            Route(f"/{name}.css", partial(_sheet, name), methods=["GET"])
            for name in ("report", "dark")
        ),
    ]
    app = Starlette(routes=routes, exception_handlers={500: _failed, Exception: _failed})
    app.router.redirect_slashes = False
    return _Guard(app, token, port)


@final
class _Guard:
    """Refuses who may not ask, and adds the headers that keep the page to itself."""

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self._app, self._token, self._cookie = app, token.encode(), f"trustsets-{port}"
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # Lifespan is the server's own; nothing here speaks over web sockets.
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                if scope["path"] == "/" and message["status"] == 200:
                    token = self._token.decode()
                    headers["Set-Cookie"] = (
                        f"{self._cookie}={token}; Path=/; HttpOnly; SameSite=Strict"
                    )
            await send(message)

        refusal = self._refusal(Request(scope))
        await (refusal or self._app)(scope, receive, with_headers)

    def _refusal(self, request: Request) -> Response | None:
        headers = Headers(scope=request.scope)
        if headers.get("host", "") not in self._hosts:
            return _refused("this address is not the explorer's; use the one that was printed.")
        origin = headers.get("origin")
        origins = {f"http://{host}" for host in self._hosts}
        if origin is not None and origin not in origins:
            return _refused("requests of other pages are refused.")
        if request.method != "GET" and origin is None:
            return _refused("requests must say which page they come from.")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            # A link from elsewhere may open the page itself; the token decides then.
            if request.url.path != "/" or headers.get("sec-fetch-mode") != "navigate":
                return _refused("requests of other pages are refused.")
        tokens = [request.query_params.get("token", ""), request.cookies.get(self._cookie, "")]
        # All are compared, whatever the first gives.
        if not any([hmac.compare_digest(token.encode(), self._token) for token in tokens]):
            return _refused("the token is missing or wrong; use the whole address.")
        return None


def _refused(text: str, status: int = 403) -> Response:
    # Nobody who is refused keeps a connection.
    headers = {"Connection": "close"} if status == 403 else None
    return PlainTextResponse(text[:1].upper() + text[1:], status, headers)


async def _failed(request: Request, error: Exception) -> Response:
    _log.error("%s failed", request.url.path, exc_info=error)
    return _refused("the explorer could not answer this; its log says why.", 500)


async def _file(name: str, request: Request) -> Response:
    text = (resources.files("trustsets_explorer") / "page" / name).read_text(encoding="utf-8")
    return Response(text, media_type=_KINDS[name.rpartition(".")[2]])


async def _sheet(name: str, request: Request) -> Response:
    return Response(str(page_styles()[name]), media_type="text/css")


async def _image(shared: _Shared, request: Request) -> Response:
    part, row = request.path_params["part"], request.path_params["row"]
    if part not in ("held_out", "train") or not re.fullmatch(r"[0-9]{1,9}", row, re.ASCII):
        return _refused("there is no such image.", 404)
    loop = asyncio.get_running_loop()
    data = await loop.run_in_executor(shared.decoder, shared.image, part, int(row))
    if data is None:
        return _refused("there is no such image.", 404)
    return Response(data, media_type="image/png")


async def _start(shared: _Shared, request: Request) -> Response:
    session = shared.session
    return JSONResponse(
        {
            "parameters": asdict(session.parameters),
            "state": session.first_state.to_dict(),
            "n": len(session.outputs),
            "source": shared.names.get("outputs", ""),
        }
    )


async def _act(shared: _Shared, request: Request) -> Response:
    action = request.path_params["action"]
    if action not in _ACTIONS:
        return _refused("there is no such request.", 404)
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return _refused("requests must be application/json.", 415)
    try:
        query = _read(await _body(request), shared, action)
        asked = time.monotonic_ns()
        shared.note(_REQUESTS, asked)
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(shared.worker, _run, shared, query)
        query.check()
    except Superseded:
        return JSONResponse({"superseded": True})
    except _TooLarge:
        return _refused(f"requests must have at most {_MOST_BYTES} bytes.", 413)
    except (TrustSetsError, ClientDisconnect) as error:
        return _refused(str(error), 400)
    shared.idle.submit(_prepare, shared, query.state, asked)
    return result if isinstance(result, Response) else JSONResponse(result)


def _prepare(shared: _Shared, state: State, asked: int) -> None:
    """Make the next moves of alpha fast, until a page asks something else."""
    check = partial(shared.check, (_REQUESTS,), asked)
    try:
        end = time.monotonic() + _IDLE
        while time.monotonic() < end:
            check()
            time.sleep(_IDLE / 20)
        for coming in nearest_alphas(state):
            # On the worker, where a question ends it after the stage it is in.
            shared.worker.submit(answer, shared.session, coming, check).result()
    except (Superseded, RuntimeError):
        return  # something was asked, or the program ends and takes no more work
    except Exception:
        # Nobody waits for this, and the next question does without it.
        _log.warning("preparing other alphas failed", exc_info=True)


class _TooLarge(Exception):
    """A body has more bytes than any question needs."""


async def _body(request: Request) -> bytes:
    """The body; no more than allowed is ever held."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > _MOST_BYTES:
            raise _TooLarge
        parts.append(part)
    return b"".join(parts)


def _read(body: bytes, shared: _Shared, action: str) -> Query:
    """Check what was sent; all gives way to a newer question of its kind, or a newer answer."""
    try:
        data = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise InputError("the body must be JSON.") from None
    names = {"client", "generation", "state", "index", "table", "bin", "row"}
    if not isinstance(data, dict) or not {"client", "generation", "state"} <= set(data) <= names:
        raise InputError(f"the body must be an object with the names {', '.join(sorted(names))}.")
    client, generation = data["client"], data["generation"]
    if not isinstance(client, str) or not _CLIENT.fullmatch(client):
        raise InputError("client must be 8 to 32 hexadecimal digits.")
    if not _is_in(generation, range(_LARGEST_WHOLE)):
        raise InputError("generation must be a whole number.")
    state = State.read(data["state"], shared.session.parameters)
    index, row = data.get("index", 0), data.get("row", 0)
    if not _is_in(index, range(len(state.settings))):
        raise InputError("index must be 0, or 1 for a second method.")
    if not _is_in(row, range(shared.session.n_test)):
        raise InputError(f"row must be one of the {shared.session.n_test} test samples.")
    # Both give way to a newer move.
    lane = f"{client}/{'answer' if action == 'first' else action}"
    check = partial(shared.check, (f"{client}/answer", lane), generation)
    shared.note(lane, generation)
    return Query(action, state, check, index, data.get("table"), data.get("bin"), row)


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _is_in(value: Any, allowed: range) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value in allowed


# What a page can ask for.
_ACTIONS = ("first", "answer", "words", "list", "sample", "regions", "code", "predictor")


def _run(shared: _Shared, query: Query) -> Any:  # noqa: PLR0911
    """Plain data for one of the actions, or a response."""
    query.check()
    session, state, index, check = shared.session, query.state, query.index, query.check
    match query.action:
        case "answer":
            return Response(answer(session, state, check), media_type="application/json")
        case "first":
            return Response(first_answer(session, state, check), media_type="application/json")
        case "words":
            return words(session, state, check)
        case "list":
            return samples.list_cell(session, state, index, query.table, query.bin, check)
        case "sample":
            return samples.describe(session, shared.gallery, state, index, query.row)
        case "regions":
            return samples.regions(session, state, index, check)
        case "code":
            return {
                "python": exports.as_python(session, state, index, shared.names),
                "command": exports.as_command(session, state, index, shared.names),
            }
        case _:
            data = exports.saved_predictor(session, state, index)
            return Response(data, media_type="application/octet-stream")
