"""Types at a program in a terminal of 80 columns: arguments are the program and its own; standard input has a line for each step,
a text that is waited for, a tab, and what is typed then, in Python's escapes. Prints what the terminal showed."""

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
    """Reads until the text is there behind the start, and gives where it ends; the end of everything without one."""
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
