"""Texts with valid and invalid parts."""

# Whole characters, parts of characters, and bytes that only Cassandra accepts as text.
PIECES = [
    *(b"", b"a", b"\0", "\u00e9".encode(), "\u4e2d".encode(), "\U0001f600".encode(), "\ufdd0".encode(), b"ed", b"0"),
    *("\ufdd0ed".encode(), "\ufdd1".encode(), "\uffff".encode(), "\ufffd".encode(), b"\xef\xb7", b"\xef", b"\x90"),
    *(b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xed\xa0\xbd\xed\xb8\x80", b"\xc0\x80", b"\xf4\x90\x80\x80"),
    *(b"\xf5\x80\x80\x80", b"\xf7\xbf\xbf\xbf", b"\xc1\x81", b"\xe0\x80\x80", b"\xf0\x80\x80\x80", b"\x80", b"\xff"),
]
