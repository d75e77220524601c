"""A small stand-in for the Hugging Face hub, which speaks what up- and downloading models needs."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

TOKEN = "hf_of_a_friend"


class Hub(ThreadingHTTPServer):
    """Repositories in memory.

    Attributes:
        files: repository -> path -> content.
        private: names of repositories that only the token shows.
        requests: method and path of everything that was asked.
        commits: what was said with each commit.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.requests: list[str] = []
        self.commits: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def commit(self, repo: str) -> str:
        """The name of a repository's newest commit: a digest of its files."""
        digest = hashlib.sha1()
        for path, content in sorted(self.files[repo].items()):
            digest.update(f"{path}\0{hashlib.sha256(content).hexdigest()}\0".encode())
        return digest.hexdigest()


@contextmanager
def running():
    """A hub that answers while the block lasts."""
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments) -> None:
        pass

    def _answer(self, status: int, body: object = b"", **headers: str) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(raw)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(raw)

    def _authorized(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _visible(self, repo: str) -> bool:
        """Answers for the hub when there is nothing to see."""
        hub = self.server
        if repo in hub.files and (repo not in hub.private or self._authorized()):
            return True
        self._answer(401, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
        return False

    def _known(self, repo: str, revision: str) -> bool:
        if revision in ("main", self.server.commit(repo)):
            return True
        self._answer(404, {"error": "Invalid rev id"}, X_Error_Code="RevisionNotFound")
        return False

    def do_GET(self) -> None:
        hub, path = self.server, unquote(urlsplit(self.path).path)
        hub.requests.append(f"{self.command} {path}")
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            repo = "/".join(parts[2:4])
            revision = parts[5] if len(parts) > 5 else "main"
            if not self._visible(repo) or not self._known(repo, revision):
                return
            if parts[4:5] == ["tree"]:
                files = [
                    {"type": "file", "path": p, "size": len(c), "oid": hashlib.sha1(c).hexdigest()}
                    for p, c in hub.files[repo].items()
                ]
                self._answer(200, files)
                return
            siblings = [{"rfilename": p} for p in hub.files[repo]]
            info = {"id": repo, "modelId": repo, "sha": hub.commit(repo), "siblings": siblings}
            self._answer(200, {**info, "private": repo in hub.private, "tags": [], "downloads": 0})
            return
        if parts[2:3] != ["resolve"]:
            self._answer(404, {"error": "Not Found"})
            return
        repo, revision, file = "/".join(parts[:2]), parts[3], "/".join(parts[4:])
        if not self._visible(repo) or not self._known(repo, revision):
            return
        if file not in hub.files[repo]:
            self._answer(404, {"error": "Entry not found"}, X_Error_Code="EntryNotFound")
            return
        content = hub.files[repo][file]
        etag = f'"{hashlib.sha1(content).hexdigest()}"'
        self._answer(200, content, ETag=etag, X_Repo_Commit=hub.commit(repo))

    do_HEAD = do_GET

    def do_POST(self) -> None:
        hub, path = self.server, unquote(urlsplit(self.path).path)
        hub.requests.append(f"POST {path}")
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            raw = self._chunks()
        if not self._authorized():
            self._answer(401, {"error": "Invalid username or password."})
            return
        parts = path.strip("/").split("/")
        if path == "/api/validate-yaml":
            self._answer(200, {"errors": [], "warnings": []})
        elif path == "/api/repos/create":
            self._create(json.loads(raw))
        elif parts[4] == "preupload":
            files = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                for f in json.loads(raw)["files"]
            ]
            self._answer(200, {"files": files})
        elif parts[4] == "commit":
            self._commit("/".join(parts[2:4]), [json.loads(line) for line in raw.splitlines()])

    def _chunks(self) -> bytes:
        content = b""
        while size := int(self.rfile.readline(), 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def _create(self, wanted: dict) -> None:
        repo = f"{wanted.get('organization') or 'friend'}/{wanted['name']}"
        if repo in self.server.files:
            self._answer(409, {"error": "You already created this model repo", "url": repo})
            return
        self.server.files[repo] = {".gitattributes": b""}
        if wanted.get("private") or wanted.get("visibility") == "private":
            self.server.private.add(repo)
        self._answer(200, {"url": f"{self.server.url}/{repo}", "name": repo})

    def _commit(self, repo: str, lines: list[dict]) -> None:
        for line in lines:
            if line["key"] == "header":
                self.server.commits.append(line["value"]["summary"])
            elif line["key"] == "file":
                content = base64.b64decode(line["value"]["content"])
                self.server.files[repo][line["value"]["path"]] = content
        name = self.server.commit(repo)
        url = f"{self.server.url}/{repo}/commit/{name}"
        self._answer(200, {"success": True, "commitUrl": url, "commitOid": name})
