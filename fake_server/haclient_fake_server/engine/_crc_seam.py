"""CRC-64 of protocol 6, until haclient.protocol has it."""

from __future__ import annotations


def crc64(data: bytes) -> int:
    """CRC-64, bit by bit."""
    crc = 0xFFFFFFFFFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x95AC9329AC4BC9B5 if crc & 1 else 0)
    return crc
