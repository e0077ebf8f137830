"""The frame format, read by a second hand: golden headers, decoded with `struct` alone.

The native tests write the same headers and verify their hashes (native/codec/frame_test.cpp).
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "frame"
PAGE = ROOT / "docs" / "formats" / "frame.md"

LAYOUT = struct.Struct("<4sBBHQQQ8sQQHHI")
IDENTITY = bytes.fromhex("0011223344556677")


class Header(NamedTuple):
    """The fields in the order of docs/formats/frame.md."""

    magic: bytes
    version: int
    codec: int
    flags: int
    payload_size_bytes: int
    original_size_bytes: int
    payload_checksum: int
    identity: bytes
    key_digest: int
    generation: int
    stripe_index: int
    stripe_count: int
    header_checksum: int


def from_hex(text: str) -> bytes:
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return bytes.fromhex(" ".join(lines))


def golden(name: str) -> Header:
    return Header._make(LAYOUT.unpack(from_hex((GOLDEN / f"{name}.hex").read_text())))


# Sizes, checksum, key digest, generation, stripe, header checksum; the hashes as the reference
# implementation of XXH3-64 gives them.
EXPECTED = {
    "single": (
        (14, 14),
        0xD5D669847B0C5CD1,
        0x9F118124ED61BD07,
        0x62FDCE035738F23C,
        (0, 1),
        0x7D47CEF9,
    ),
    "empty": (
        (0, 0),
        0x2D06800538D394C2,
        0xCC9FB6F211AD5CAA,
        0x9F77619E37E86919,
        (0, 1),
        0x1D9A48F8,
    ),
    "stripe-0": (
        (2_625_536, 5_242_881),
        0x4A87F8268511F054,
        0x0522FD729D1BA86D,
        0x7E1DE9AA48CB194A,
        (0, 2),
        0x50DFA02A,
    ),
    "stripe-1": (
        (2_617_345, 5_242_881),
        0x2335CAE132D53A91,
        0x0522FD729D1BA86D,
        0x7E1DE9AA48CB194A,
        (1, 2),
        0xFACA7695,
    ),
}


def test_the_layout_is_64_bytes_and_every_file_is_expected() -> None:
    assert LAYOUT.size == 64
    assert {path.stem for path in GOLDEN.glob("*.hex")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_golden_header_says_what_the_format_page_says(name: str) -> None:
    sizes, checksum, key_digest, generation, stripe, header_checksum = EXPECTED[name]
    constants = (b"KVFY", 1, 0, 0)
    hashes = (checksum, IDENTITY, key_digest, generation)
    assert golden(name) == (*constants, *sizes, *hashes, *stripe, header_checksum)


def test_the_stripes_of_one_value_belong_together() -> None:
    first, second = golden("stripe-0"), golden("stripe-1")
    assert first.generation == second.generation
    assert first.key_digest == second.key_digest
    assert first.payload_size_bytes % 4096 == 0
    assert first.payload_size_bytes + second.payload_size_bytes == first.original_size_bytes


def test_the_worked_example_of_the_format_page_is_the_golden_file() -> None:
    blocks = re.findall(r"```hex\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert [from_hex(block) for block in blocks] == [
        from_hex((GOLDEN / f"{name}.hex").read_text()) for name in ("single", "stripe-1")
    ]


def test_the_table_of_the_format_page_has_no_gap() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    end = 0
    for offset, size, _ in rows:
        assert int(offset) == end
        end += int(size)
    assert end == 64
    assert tuple(name for _, _, name in rows) == Header._fields
