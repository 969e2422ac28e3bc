"""HTTP for the scripts that firstlight starts: the standard library's TLS, the system's certificates and proxies, redirects, and
one kept connection to each host. Firstlight puts this text in front of a script's own.
"""

import base64
import fcntl
import hashlib
import http.client
import json
import os
import queue
import ssl
import sys
import threading
import time
from urllib.parse import unquote, urljoin, urlsplit

CHUNK = 1 << 18
# What comes is said at most every tenth of a second for each file: a line for each chunk would cost more than it tells.
QUIET = 0.1
REDIRECTS = 10

speaking = threading.Lock()


def say(*fields):
    with speaking:
        # When nobody listens any more, firstlight has ended, and so does this.
        try:
            sys.stdout.write("\t".join(str(f).replace("\n", " ").replace("\t", " ") for f in fields) + "\n")
            sys.stdout.flush()
        except OSError:
            os._exit(1)


def end_with_parent(parent):
    """A killed firstlight leaves nobody to fetch for."""
    while os.getppid() == parent:
        time.sleep(0.1)
    os._exit(1)


class Refused(OSError):
    """The server's answer is an error."""

    def __init__(self, status, reason):
        super().__init__(f"HTTP {status}: {reason}")
        self.status = status


def proxy_for(scheme, host):
    """The proxy that the user's variables name for an address."""
    if not any(name.lower().endswith("_proxy") for name in os.environ) and sys.platform != "darwin":
        return None
    # Slow to load, and wanted by few.
    from urllib.request import getproxies, proxy_bypass

    address = getproxies().get(scheme)
    if not address or proxy_bypass(host):
        return None
    return urlsplit(address if "://" in address else "http://" + address)


def tls(made=[], making=threading.Lock()):
    """Its certificates take longer to read than a connection takes to be made: read where one is encrypted, and once."""
    with making:
        if not made:
            made.append(ssl.create_default_context())
        return made[0]


class Connections:
    """One connection to each host, kept open for the next file: a new one costs several round trips."""

    def __init__(self, bearer=None):
        self.kept = {}
        self.bearer = bearer

    def connect(self, url, timeout):
        """The connection for an address, and whether it was kept from before."""
        key = (url.scheme, url.netloc)
        if key in self.kept:
            connection = self.kept[key]
            if connection.sock:
                connection.sock.settimeout(timeout)
            return connection, bool(connection.sock)
        proxy = proxy_for(url.scheme, url.hostname)
        host, port = (proxy or url).hostname, (proxy or url).port
        if url.scheme == "https":
            connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=tls())
        else:
            connection = http.client.HTTPConnection(host, port, timeout=timeout)
        connection.proxy_headers = {}
        connection.absolute = bool(proxy) and url.scheme == "http"
        if proxy:
            if proxy.username:
                login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
                connection.proxy_headers["Proxy-Authorization"] = "Basic " + base64.b64encode(login).decode()
            if url.scheme == "https":
                connection.port = port or 80
                connection.set_tunnel(url.hostname, url.port or 443, connection.proxy_headers)
        self.kept[key] = connection
        return connection, False

    def drop(self, url):
        connection = self.kept.pop((url.scheme, url.netloc), None)
        if connection:
            connection.close()

    def once(self, method, url, headers, timeout):
        connection, kept = self.connect(url, timeout)
        target = url.path or "/"
        if url.query:
            target += "?" + url.query
        if connection.absolute:
            target, headers = f"http://{url.netloc}{target}", {**headers, **connection.proxy_headers}
        try:
            connection.request(method, target, headers=headers)
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            self.drop(url)
            # The server may have closed it while it was idle.
            if kept and isinstance(error, (ConnectionError, ssl.SSLError)):
                return self.once(method, url, headers, timeout)
            raise

    def request(self, method, address, timeout, offset=0, more=None):
        """The answer after all redirects, and the address that gave it. `more` are further headers."""
        headers = {"User-Agent": "firstlight", "Accept-Encoding": "identity", **(more or {})}
        if offset:
            headers["Range"] = f"bytes={offset}-"
        for _ in range(REDIRECTS):
            url = urlsplit(address)
            if url.scheme not in ("http", "https"):
                raise Refused(400, f"no address of HTTP: {address}")
            secret = {}
            if self.bearer and url.netloc == urlsplit(self.bearer["url"]).netloc:
                secret["Authorization"] = "Bearer " + os.environ[self.bearer["variable"]].strip()
            answer = self.once(method, url, {**headers, **secret}, timeout)
            onward = answer.headers.get("Location") if answer.status in (301, 302, 303, 307, 308) else None
            if not onward:
                if answer.status >= 400:
                    self.drop(url)
                    raise Refused(answer.status, answer.reason)
                return answer, url
            self.drop(url)
            address = urljoin(address, onward)
        raise Refused(310, "too many redirects")
