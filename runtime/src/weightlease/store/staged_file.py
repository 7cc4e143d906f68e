"""One file of declared size being staged: written, hashed per file and hashed per tensor at once.

    producer ── chunk ──┬── write      each chunk is shared by up to three threads and returns to
                        ├── file hash  a fixed pool when the last of them is done with it
                        └── tensor hash

Writing and hashing release the interpreter lock, so they run on as many cores as there are. Chunks
in flight are bounded, so a producer that is faster than the disk waits. A small file is handled in
the caller's thread. Write-back is started behind the writer, so that the final fsync is short.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from queue import SimpleQueue

from weightlease import filesystem
from weightlease.errors import production_failure
from weightlease.store.digests import TensorDigests
from weightlease.store.protocol import Buffer

CHUNK_BYTES = 4 * 1024 * 1024
CHUNKS_IN_FLIGHT = 16
SMALL_FILE_BYTES = 1024 * 1024
_WRITEBACK_BYTES = 32 * 1024 * 1024
_SYNC_FILE_RANGE_WRITE = 2


class StagedFile:
    """A `FileWriter` over one new file; used by one thread at a time.

    `buffers` is where chunks come from and go back to; files one after another may share it.
    """

    def __init__(
        self,
        path: str,
        name: str,
        size: int,
        tensors: TensorDigests | None,
        buffers: list[bytearray],
    ) -> None:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        self.name = name
        self.path = path
        self.size = size
        self.tensors = tensors
        self.received = 0
        self._digest = hashlib.sha256()
        self._fd = os.open(path, flags, 0o600)
        self._writer = _Writer(self._fd)
        consumers: list[Callable[[memoryview], None]] = [self._writer.write, self._digest.update]
        if tensors is not None:
            consumers.append(tensors.update)
        self._sink: _Inline | _Pipeline = (
            _Inline(consumers, size) if size <= SMALL_FILE_BYTES else _Pipeline(consumers, buffers)
        )

    def write(self, data: Buffer) -> None:
        """Append bytes; `bytes` objects are taken by reference, anything else is copied.

        Raises:
            WeightLeaseError: more bytes than declared, a header that lies, or storage that failed.

        """
        view = memoryview(data).cast("B")
        self._admit(len(view))
        with self._storage():
            self._sink.write(view)

    def reserve(self) -> memoryview:
        """Room for the next bytes, at least one, to be filled in place and then given to `commit`.

        Raises:
            WeightLeaseError: the file has its declared size already, or as for `write`.

        """
        left = self.size - self.received
        if not left:
            self._admit(1)
        with self._storage():
            return self._sink.reserve()[:left]

    def commit(self, count: int) -> None:
        """Append the first `count` bytes of what `reserve` returned."""
        self._admit(count)
        with self._storage():
            self._sink.commit(count)

    def finish(self) -> str:
        """Wait until everything is written and hashed; returns the file's sha256.

        The file is complete but not yet durable; `sync_and_close` is next.

        Raises:
            WeightLeaseError: fewer bytes than declared, or as for `write`.

        """
        if self.received != self.size:
            raise production_failure(
                f"{self.name!r} ended at {self.received} of {self.size} declared bytes"
            )
        with self._storage():
            self._sink.finish()
        return self._digest.hexdigest()

    def sync_and_close(self) -> None:
        """Make contents and mode durable.

        Raises:
            OSError: this file may not be on disk.

        """
        fd, self._fd = self._fd, -1
        try:
            os.fchmod(fd, filesystem.READ_ONLY_FILE)
            os.fsync(fd)
        finally:
            os.close(fd)

    def discard(self) -> None:
        """Stop and remove the file; never raises."""
        with suppress(Exception):
            self._sink.stop()
        fd, self._fd = self._fd, -1
        with suppress(OSError):
            if fd >= 0:
                os.close(fd)
        with suppress(OSError):
            os.unlink(self.path)

    def _storage(self) -> AbstractContextManager[None]:
        return filesystem.storage_errors(f"cannot write {self.name!r}")

    def _admit(self, count: int) -> None:
        if count < 0 or self.received + count > self.size:
            raise production_failure(
                f"{self.name!r} was declared with {self.size} bytes, but more arrived"
            )
        self.received += count


# ---- where chunks go ----


class _Inline:
    """Small files: every consumer in the caller's thread."""

    def __init__(self, consumers: list[Callable[[memoryview], None]], size: int) -> None:
        self._consumers = consumers
        self._room = memoryview(bytearray(size))

    def write(self, view: memoryview) -> None:
        for consume in self._consumers:
            consume(view)

    def reserve(self) -> memoryview:
        return self._room

    def commit(self, count: int) -> None:
        self.write(self._room[:count])

    def finish(self) -> None:
        pass

    def stop(self) -> None:
        pass


class _Chunk:
    """Bytes that several threads read; `release` runs when the last of them is done."""

    def __init__(self, view: memoryview, readers: int, release: Callable[[], None]) -> None:
        self.view = view
        self._left = readers
        self._release = release
        self._guard = threading.Lock()

    def done(self) -> None:
        with self._guard:
            self._left -= 1
            last = not self._left
        if last:
            self._release()


class _Pipeline:
    """Large files: one thread per consumer, a bounded number of chunks between them."""

    def __init__(
        self, consumers: list[Callable[[memoryview], None]], buffers: list[bytearray]
    ) -> None:
        self._slots = threading.Semaphore(CHUNKS_IN_FLIGHT)
        self._free = buffers
        self._partial: bytearray | None = None
        self._filled = 0
        self.failure: BaseException | None = None
        self._stages = [_Stage(consume, self) for consume in consumers]

    def write(self, view: memoryview) -> None:
        if isinstance(view.obj, bytes) and len(view) >= CHUNK_BYTES // 4:
            self._flush()
            for start in range(0, len(view), CHUNK_BYTES):
                self._take_slot()
                self._send(view[start : start + CHUNK_BYTES], self._slots.release)
            return
        while view:
            room = self.reserve()
            step = min(len(room), len(view))
            room[:step] = view[:step]
            self.commit(step)
            view = view[step:]

    def reserve(self) -> memoryview:
        if self._partial is None:
            self._take_slot()
            self._partial = self._free.pop() if self._free else bytearray(CHUNK_BYTES)
        return memoryview(self._partial)[self._filled :]

    def commit(self, count: int) -> None:
        self._filled += count
        if self._filled == CHUNK_BYTES:
            self._flush()

    def finish(self) -> None:
        self._flush()
        self._join()
        self._raise_failure()

    def stop(self) -> None:
        # what is still queued is let go instead of written
        self.failure = self.failure or InterruptedError()
        self._join()

    def _join(self) -> None:
        for stage in self._stages:
            stage.stop()
        for stage in self._stages:
            stage.join()
        # Stages and pipeline refer to each other; nothing must wait for the collector.
        self._stages = []

    def _take_slot(self) -> None:
        self._slots.acquire()
        if self.failure is not None:
            self._slots.release()
            self._raise_failure()

    def _flush(self) -> None:
        if self._partial is None:
            return
        chunk, filled = self._partial, self._filled
        self._partial, self._filled = None, 0

        def release() -> None:
            self._free.append(chunk)
            self._slots.release()

        self._send(memoryview(chunk)[:filled], release)

    def _send(self, view: memoryview, release: Callable[[], None]) -> None:
        chunk = _Chunk(view, len(self._stages), release)
        for stage in self._stages:
            stage.give(chunk)

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure


class _Stage:
    """A thread that consumes chunks in order; after a failure of any stage it only lets them go."""

    def __init__(self, consume: Callable[[memoryview], None], pipeline: _Pipeline) -> None:
        self._consume = consume
        self._pipeline = pipeline
        self._queue: SimpleQueue[_Chunk | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="weightlease-stage", daemon=True)
        self._thread.start()

    def give(self, chunk: _Chunk) -> None:
        self._queue.put(chunk)

    def stop(self) -> None:
        self._queue.put(None)

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        while (chunk := self._queue.get()) is not None:
            try:
                if self._pipeline.failure is None:
                    self._consume(chunk.view)
            except BaseException as error:  # noqa: BLE001 - it is raised in the producer's thread
                self._pipeline.failure = self._pipeline.failure or error
            finally:
                chunk.done()


class _Writer:
    """Appends to the file and starts write-back behind itself."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._written = 0
        self._started = 0

    def write(self, view: memoryview) -> None:
        filesystem.write_all(self._fd, view)
        self._written += len(view)
        if self._written - self._started >= _WRITEBACK_BYTES:
            # Only a hint: durability is fsync's, so an error here is left for it to report.
            _start_writeback(self._fd, self._started, self._written - self._started)
            self._started = self._written


_libc = ctypes.CDLL(None, use_errno=True)


def _start_writeback(fd: int, offset: int, count: int) -> None:
    _libc.sync_file_range(
        ctypes.c_int(fd),
        ctypes.c_int64(offset),
        ctypes.c_int64(count),
        ctypes.c_uint(_SYNC_FILE_RANGE_WRITE),
    )
