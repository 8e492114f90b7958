"""The header lines of mails: whatever data a value holds stays within its own header."""

import base64
import re
from collections.abc import Iterator, Sequence
from email.headerregistry import Address

LINE = 76  # characters; RFC 2047, 2, of a line with an encoded word in it
WORD_LIMIT = 900  # characters of one word that stays as it is; RFC 5322, 2.1.1 ends a line at 998
ENCODED = ("=?utf-8?b?", "?=")
LEAST = 12  # bytes of text in an encoded word, however long the header's name is

FOLD = "\r\n "
MARK = "=?"  #: begins an encoded word: a text that holds it would be read as something else

_PRINTABLE = re.compile(r"[!-~]([ -~]*[!-~])?")
# RFC 5322, 3.2.5: a phrase of atoms, which is as it is
_PHRASE = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?: [A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*")


def text_line(name: str, value: str) -> str:
    """
    The line of a header whose value is text, folded, with its end.

    A text that looks encoded (RFC 2047) is encoded itself: decoded and written anew it could end
    the line. *value* holds no control characters.
    """
    words = re.findall(r" *[^ ]+", value)
    stays = not value or (_PRINTABLE.fullmatch(value) and MARK not in value)
    if not stays or any(len(word) > WORD_LIMIT for word in words):
        return f"{name}: {FOLD.join(_encoded(value, taken=len(name) + 2))}\r\n"
    line, lines = f"{name}:", []
    for word in [f" {words[0]}", *words[1:]] if words else [" "]:
        if len(line) + len(word) > LINE and line != f"{name}:":
            lines.append(line)
            line = ""
        line += word
    return "\r\n".join([*lines, line]) + "\r\n"


def address_line(name: str, addresses: Sequence[Address]) -> str:
    """The line of a header that holds *addresses*, one below the other, with its end."""
    return f"{name}: {f',{FOLD}'.join(map(_address, addresses))}\r\n"


def _address(address: Address) -> str:
    display = address.display_name
    if not display:
        return address.addr_spec
    if _PHRASE.fullmatch(display) and MARK not in display and len(display) <= LINE:
        written = display
    elif _PRINTABLE.fullmatch(display) and MARK not in display and len(display) <= LINE:
        written = '"' + re.sub(r'(["\\])', r"\\\1", display) + '"'
    else:
        written = FOLD.join(_encoded(display, taken=len("Reply-To: ")))
    last = len(written) - written.rfind(FOLD)
    joint = " " if last + len(address.addr_spec) < LINE else FOLD
    return f"{written}{joint}<{address.addr_spec}>"


def _encoded(text: str, *, taken: int) -> Iterator[str]:
    """*text* as encoded words, each of whole characters; the first line has *taken* already."""
    room = LINE - len("".join(ENCODED)) - 1
    piece = b""
    for character in text:
        further = character.encode()
        if len(piece) + len(further) > max((room - taken) // 4 * 3, LEAST):
            yield _word(piece)
            piece, taken = b"", 0
        piece += further
    yield _word(piece)


def _word(piece: bytes) -> str:
    return base64.b64encode(piece).decode("ascii").join(ENCODED)
