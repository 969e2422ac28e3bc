"""Runs a program in a pseudo-terminal of 80 columns and prints the terminal's output. The arguments are the program and its arguments.
Each line of standard input has a text to wait for, a tab, and the input to type, with Python's escapes."""

import fcntl
import os
import pty
import select
import struct
import sys
import termios
import time

steps = [line.rstrip("\n").split("\t") for line in sys.stdin]
child, terminal = pty.fork()
if child == 0:
    os.environ["TERM"] = "xterm"
    os.execv(sys.argv[1], sys.argv[1:])
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

shown = b""


def wait(text, start):
    """Reads until the text occurs after `start` and returns its end. Without a text, reads to the end of the output."""
    global shown
    deadline = time.monotonic() + 60
    while text is None or text not in shown[start:]:
        if time.monotonic() > deadline:
            sys.exit(f"waited in vain for {text!r} in {shown[start:]!r}")
        ready, _, _ = select.select([terminal], [], [], 1)
        if not ready:
            continue
        try:
            more = os.read(terminal, 65536)
        except OSError:
            more = b""
        if not more:
            if text is None:
                return
            sys.exit(f"ended before {text!r} in {shown[start:]!r}")
        shown += more
    return shown.index(text, start) + len(text)


at = 0
for text, typed in steps:
    at = wait(text.encode(), at)
    os.write(terminal, typed.encode().decode("unicode_escape").encode("latin-1"))
wait(None, at)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
sys.stdout.buffer.write(shown)
sys.exit(status)
