"""A network between a program and a server, which can lose everything without closing anything."""

import socket
import threading
from contextlib import suppress
from pathlib import Path


class Network:
    """Listens on a port and passes bytes on to a socket. While it is `cut`, nothing passes in either
    direction, connections stay open, and new ones are taken and get no answer; what was sent
    meanwhile arrives afterwards, as over a network that repeats what was lost."""

    def __init__(self, target: Path) -> None:
        self._target = str(target)
        self._passing = threading.Event()
        self._passing.set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._passing.clear()

    def heal(self) -> None:
        self._passing.set()

    def close(self) -> None:
        self.heal()
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        self._passing.wait()
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(self._target)
        except OSError:
            client.close()
            server.close()
            return
        back = threading.Thread(target=self._pass_on, args=(server, client), daemon=True)
        back.start()
        self._pass_on(client, server)
        back.join()
        client.close()
        server.close()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while content := source.recv(65_536):
                self._passing.wait()
                target.sendall(content)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
