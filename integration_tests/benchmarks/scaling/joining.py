"""What torch's store is asked while ranks join a group, counted between them and the store."""

import socket
import threading
import time

import torch.multiprocessing as mp

import mm_dist
from scaling.processes import find_free_port, leave, take_place


class Relay:
    """Passes on what one rank and the store say to each other, and counts it."""

    def __init__(self, port):
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.connections, self.questions = 0, 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            near, _ = self._listener.accept()
            far = self._connect()
            self.connections += 1
            for source, sink, counts in ((near, far, True), (far, near, False)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(
                    target=self._pass, args=(source, sink, counts), daemon=True
                ).start()

    def _connect(self):
        """Connect to rank 0, which may not listen yet; the other rank does not notice."""
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self._target))
            except ConnectionRefusedError:
                time.sleep(0.01)

    def _pass(self, source, sink, counts):
        try:
            while data := source.recv(65536):
                self.questions += counts
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            sink.close()


def count_joining(world_size):
    """Return connections and messages of a rank that is not rank 0, while it joins."""
    port = find_free_port()
    relay = Relay(port)
    context = mp.get_context("spawn")
    ready = context.Barrier(world_size + 1)
    ranks = [
        context.Process(target=join, args=(rank, world_size, relay.port if rank else port, ready))
        for rank in range(world_size)
    ]
    for process in ranks:
        process.start()
    ready.wait()
    ready.wait()
    counted = relay.connections / (world_size - 1), relay.questions / (world_size - 1)
    ready.wait()
    for process in ranks:
        process.join()
    return counted


def join(rank, world_size, port, ready):
    take_place(rank, world_size, port)
    ready.wait()
    mm_dist.init_dist("pytorch", device_type="cpu", timeout=120)
    ready.wait()
    ready.wait()
    leave()
