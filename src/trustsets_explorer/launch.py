"""`explore`: start the server, say where it is, open the browser."""

import asyncio
import html
import os
import secrets
import socket
import tempfile
import threading
import weakref
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs, SupportsTrust
from trustsets_explorer.gallery import Gallery, Train
from trustsets_explorer.session import Session

__all__ = ["Explorer", "StrPath", "explore"]

Floats = NDArray[np.float64]
StrPath = str | os.PathLike[str]

_LOCAL = "127.0.0.1"
_PATIENCE = 30.0


@final
class Explorer:
    """A running explorer: `url` is its address, `stop` ends it.

    In a notebook it is shown as a link.
    """

    def __init__(
        self, session: Session, gallery: Gallery, port: int, names: dict[str, str]
    ) -> None:
        try:
            import uvicorn

            from trustsets_explorer.server import (
                BACKLOG,
                LimitedProtocol,
                log_loop_error,
                make_app,
            )
        except ImportError as error:
            raise InputError(
                f"the explorer needs {error.name}; install it with pip install "
                '"trustsets[explore]".'
            ) from error
        self._socket = _bind(port)
        self.port: int = self._socket.getsockname()[1]
        self.session, self._token = session, secrets.token_urlsafe(24)
        app = make_app(session, gallery, self._token, self.port, names)
        config = uvicorn.Config(
            app, http=LimitedProtocol, backlog=BACKLOG, timeout_keep_alive=5, log_level="error",
            access_log=False, lifespan="off", ws="none", server_header=False,
            timeout_graceful_shutdown=2,
        )  # fmt: skip
        self._server = server = uvicorn.Server(config)
        self._remove_page: Callable[[], object] = lambda: None

        async def serve(sockets: list[socket.socket]) -> None:
            asyncio.get_running_loop().set_exception_handler(log_loop_error)
            await server.serve(sockets=sockets)

        self._thread = threading.Thread(
            target=lambda sockets: asyncio.run(serve(sockets)), args=([self._socket],), daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Address of the page, with the token that it needs."""
        return f"http://{_LOCAL}:{self.port}/?token={self._token}"

    def open_browser(self) -> None:
        """Open the page in the browser.

        The browser gets the name of a private file that leads to the page: every user of the
        machine can read the arguments of a process, and the address has the token.
        """
        self._remove_page()
        # Readable by its owner only; removed at the end, or when Python ends.
        handle, name = tempfile.mkstemp(prefix="trustsets-", suffix=".html")
        self._remove_page = weakref.finalize(self._server, Path(name).unlink, missing_ok=True)
        url = html.escape(self.url, quote=True)
        with os.fdopen(handle, "w", encoding="utf-8") as page:
            page.write(
                '<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
                f'<meta http-equiv="refresh" content="0; url={url}">'
                f'<title>Explorer</title><p><a href="{url}">Open the explorer</a></p>\n'
            )
        webbrowser.open(Path(name).as_uri())

    def wait(self) -> None:
        """Return when the server has ended."""
        self._thread.join()

    def stop(self) -> None:
        """End the server."""
        self._server.should_exit = True
        self._thread.join(_PATIENCE)
        self._socket.close()
        self._remove_page()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"Explorer({self.url})"

    def _repr_html_(self) -> str:
        url = html.escape(self.url, quote=True)
        return f'<a href="{url}" target="_blank" rel="noreferrer">Open the explorer</a>'


def explore(
    outputs: ModelOutputs,
    trust: SupportsTrust | Floats | None = None,
    *,
    train: ModelOutputs | tuple[Any, Any] | None = None,
    images: StrPath | Any = None,
    image_names: Sequence[str] | None = None,
    texts: Sequence[str] | None = None,
    train_texts: Sequence[str] | None = None,
    train_images: Any = None,
    share: float = 0.5,
    port: int = 0,
    browser: bool = False,
    names: dict[str, str] | None = None,
) -> Explorer:
    """Serve a local page on which every parameter moves coverage live; `stop()` ends it.

    Parameters
    ----------
    outputs : ModelOutputs
        Held-out samples with labels. The page splits them into calibration and test samples.
    trust : TrustScore, or array of shape (n,), optional
        Fitted trust score, or known values. By default one is fitted on `train`.
    train : ModelOutputs, or features and labels, optional
        Training samples, for the trust score and to show those nearest to a sample.
    images : path, or array of shape (n, height, width) or (n, height, width, 3), optional
        Folder with the images of the samples, or the images themselves.
    image_names : sequence of str, optional
        File of each sample within the folder; by default all files in the order of their names.
    texts, train_texts : sequence of str, optional
        Text of each held-out and of each training sample.
    train_images : sequence of str or array, optional
        Images of the training samples: files within the same folder, or arrays.
    share : float
        Share of the samples that is for calibration.
    port : int
        Where to listen, on this machine only; 0 takes a free port.
    browser : bool
        Open the page in the browser.
    names : dict, optional
        Paths of the files that the data came from (``outputs``, ``train``), for copied code.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(400, 3))
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    >>> with explore(ModelOutputs(logits=logits, labels=labels)) as explorer:
    ...     explorer.url.startswith("http://127.0.0.1:")
    True
    """
    points = _train(train)
    if trust is None and points is not None:
        from trustsets.trust import TrustScore

        trust = TrustScore().fit(points.features, points.labels)
    written = {"held_out": texts, "train": train_texts}
    gallery = _gallery(
        len(outputs), points, images, {"held_out": image_names, "train": train_images}, written
    )
    session = Session(outputs, trust, share=share)
    explorer = Explorer(session, gallery, port, names or {})
    if browser:
        explorer.open_browser()
    return explorer


def _bind(port: int) -> socket.socket:
    if not 0 <= port < 1 << 16:
        raise InputError(f"port must lie between 0 and 65535; got {port}.")
    own = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        own.bind((_LOCAL, port))
        # From now on a browser waits for the server's thread, instead of being refused.
        own.listen()
    except OSError as error:
        own.close()
        raise InputError(
            f"port {port} cannot be used ({error.strerror}); choose another, or 0 for any."
        ) from error
    return own


def _train(train: ModelOutputs | tuple[Any, Any] | None) -> Train | None:
    if train is None:
        return None
    features, labels = (train.features, train.labels) if isinstance(train, ModelOutputs) else train
    if features is None or labels is None or len(features) != len(labels):
        raise InputError("train must have features and labels, one of each for every sample.")
    return Train(features, labels)


def _gallery(
    n: int, train: Train | None, images: Any, pictures: dict[str, Any], texts: dict[str, Any]
) -> Gallery:
    """Images and texts, as many as there are samples."""
    given = {"texts": texts["held_out"], "image_names": pictures["held_out"]}
    given |= {} if isinstance(images, str | Path) else {"images": images}
    for what, own in given.items():
        if own is not None and len(own) != n:
            raise InputError(f"{what} must have one entry for each of the {n} samples.")
    written = {part: own for part, own in texts.items() if own is not None}
    others = {} if pictures["train"] is None else {"train": pictures["train"]}
    if images is None:
        return Gallery(train, texts=written)
    if not isinstance(images, str | Path):
        return Gallery(train, arrays={"held_out": images} | others, texts=written)
    folder, names = Path(images), pictures["held_out"]
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder of images.")
    if names is None:
        names = sorted(path.name for path in folder.iterdir() if path.is_file())
        if len(names) != n:
            raise InputError(
                f"{folder} has {len(names)} files for {n} samples; say which belongs to which "
                "(image_names, or an array 'image' in the file of outputs)."
            )
    return Gallery(train, folder, {"held_out": names} | others, texts=written)
