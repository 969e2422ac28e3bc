"""HTTP client of the scripts that firstlight runs: the standard library's TLS, the system's certificates and proxies, redirects, and
one keep-alive connection per host. firstlight prepends this file to each script.
"""

import base64
import errno
import fcntl
import hashlib
import http.client
import json
import os
import queue
import socket
import ssl
import sys
import threading
import time
from urllib.parse import unquote, urljoin, urlsplit

CHUNK = 1 << 18
# Seconds between two progress lines of a file: a line per chunk would be slow.
REPORT_INTERVAL = 0.1
REDIRECTS = 10

output_lock = threading.Lock()


def say(*fields):
    with output_lock:
        # A broken pipe means that firstlight has ended.
        try:
            sys.stdout.write("\t".join(str(f).replace("\n", " ").replace("\t", " ") for f in fields) + "\n")
            sys.stdout.flush()
        except OSError:
            os._exit(1)


def end_with_parent(parent):
    """Ends this process when its parent, firstlight, has ended."""
    while os.getppid() == parent:
        time.sleep(0.1)
    os._exit(1)


class Refused(OSError):
    """The server's answer is an error."""

    def __init__(self, status, reason):
        super().__init__(f"HTTP {status}: {reason}")
        self.status = status


def reason_of(error):
    """The error as a sentence. An answer of the server needs no name of an exception."""
    return str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"


def proxy_for(scheme, host):
    """The proxy for a host from the environment variables, or None."""
    if not any(name.lower().endswith("_proxy") for name in os.environ) and sys.platform != "darwin":
        return None
    # Imported only if needed, because it is slow.
    from urllib.request import getproxies, proxy_bypass

    address = getproxies().get(scheme)
    if not address or proxy_bypass(host):
        return None
    return urlsplit(address if "://" in address else "http://" + address)


def tls(made=[], making=threading.Lock()):
    """The TLS context, made once and only for https, because loading the certificates takes longer than a connection."""
    with making:
        if not made:
            made.append(ssl.create_default_context())
        return made[0]


class Connections:
    """One keep-alive connection per host, because a new one takes several round trips."""

    def __init__(self, bearer=None):
        self.kept = {}
        self.bearer = bearer

    def connect(self, url, timeout):
        """The connection for a URL, and whether it was open before."""
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
        """The response after all redirects, and its URL. `more` are additional headers."""
        headers = {"User-Agent": "firstlight", "Accept-Encoding": "identity", **(more or {})}
        if offset:
            headers["Range"] = f"bytes={offset}-"
        for _ in range(REDIRECTS):
            url = urlsplit(address)
            if url.scheme not in ("http", "https"):
                raise Refused(400, f"not an HTTP URL: {address}")
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
