"""Stories of inflating: never more than was asked for, and nothing but gzip."""

import gzip
import tracemalloc
import zlib

import pytest

from reconciler.receiver.body import MEMBERS_MAX, NotGzipError, TooLargeError, inflate


def test_a_bomb_takes_no_more_memory_than_its_limit():
    """Two hundred megabytes of nothing in two hundred kilobytes: looked at up to the limit."""
    press = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(press.compress(bytes(1024**2)) for _ in range(200)) + press.flush()
    tracemalloc.start()
    try:
        with pytest.raises(TooLargeError):
            inflate(bomb, limit=1024**2)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 8 * 1024**2


def test_what_fits_exactly_fits():
    """The limit is over all members together, and a byte more is too much."""
    two = gzip.compress(b"a" * 60) + gzip.compress(b"b" * 40)

    assert b"a" * 60 + b"b" * 40 == inflate(two, limit=100)
    with pytest.raises(TooLargeError):
        inflate(two, limit=99)
    with pytest.raises(TooLargeError):
        inflate(gzip.compress(b"a" * 60) + gzip.compress(b"b"), limit=60)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"{}", id="not compressed"),
        pytest.param(zlib.compress(b"{}"), id="zlib"),
        pytest.param(gzip.compress(b"{}")[:-1], id="cut off"),
        pytest.param(gzip.compress(b"{}") + b"x", id="something behind it"),
        pytest.param(gzip.compress(b"{}")[:-8] + bytes(8), id="wrong checksum"),
        pytest.param(gzip.compress(b"") * (MEMBERS_MAX + 1), id="too many members"),
    ],
)
def test_what_is_not_gzip_is_said(data: bytes):
    with pytest.raises(NotGzipError):
        inflate(data, limit=1000)
