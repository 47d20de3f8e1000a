"""Values in a script: byte for byte, or refused by name; nothing else is ever run."""

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdl.jobs import quote

# Everything that Linux can hand to a program: any byte but NUL, as Python shows bytes.
BYTES = st.binary(max_size=60).map(
    lambda data: data.replace(b"\0", b"").decode(errors="surrogateescape")
)
TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
SHELLISH = st.text(alphabet="$`\"'\\!*?[]{}()<>|&;#~= \n\t\r\x1b-a")


def through_bash(*words):
    """The words as a program sees them that bash was told to run."""
    script = f"printf '%s\\0' {quote.quote_argv(words)}\n".encode(errors="surrogateescape")
    done = subprocess.run(["bash", "-s"], input=script, capture_output=True, check=True)
    assert done.stderr == b""
    return done.stdout.decode(errors="surrogateescape").split("\0")[:-1]


@settings(max_examples=30)
@given(st.lists(BYTES | TEXT | SHELLISH, min_size=1, max_size=8))
def test_any_text_arrives_as_it_is(words):
    assert through_bash(*words) == words


@pytest.mark.parametrize("text", [
    "", " ", "-n", "--help", "-", "a b", "a'b", 'a"b', "$HOME", "$(id)", "`id`", "!!", "~",
    "*", "a\nb", "a\n", "\n", "a\\nb", "\x01\x02", "\x1b[31m", "\x1f", "\x7f", "\r\n", "é",
    "\u2028", "\x85", "\u202e", "😀", "\udcff", "a=b", "a;b", "a&b", "#a", "{a,b}", "%s",
    "\\", "\\'", "'\n'", "\x01a", "x" * 100_000, "'" * 10_000, "\n" * 10_000,
])  # fmt: skip
def test_awkward_text_arrives_as_it_is(text):
    assert through_bash(text, "next") == [text, "next"]


@given(BYTES | TEXT | SHELLISH)
def test_a_value_never_spans_lines(text):
    assert "\n" not in quote.word(text)
    assert "\x1f" not in quote.word(text)


@pytest.mark.parametrize("text", ["python", "train.py", "--lr=0.1", "/data/a-b_c.d", "a:b,c@d%e+f"])
def test_plain_words_stay_readable(text):
    assert quote.word(text) == text
