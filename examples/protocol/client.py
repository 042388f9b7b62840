"""Exclusive leases by the protocol of leasehold, in Python: what docs/protocol.md says that a client needs.

It fills in the templates of docs/protocol/, and knows nothing else of the statements. The tests run it beside leasehold.
Elasticsearch and OpenSearch need only the standard library, MongoDB needs pymongo.

    client.py mongodb URI DATABASE COLLECTION
    client.py search URL ALIAS

It reads a command from each line of its input, and answers each by a line of JSON:

    acquire KEY LEASE OWNER TTL_MS        renew KEY LEASE TTL_MS        release KEY LEASE        inspect KEY
    work KEY OWNER TTL_MS ROUNDS FILE     takes the key so often; each time it appends "begin FENCE" and "end FENCE"
"""

import json
import os
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid

PAGES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/protocol")
MARGIN_MS = 100
RETENTION_MS = 24 * 60 * 60 * 1000
SCHEMA = "leasehold.lock.1"
LIMITERS = uuid.UUID("5e9f1e3b-6f0e-4b57-9d1c-0a6f3c2d8b41")


def page(name, kind):
    """The texts of this kind on a page, by their names."""
    with open(os.path.join(PAGES, name), encoding="utf-8") as file:
        text = file.read()
    return dict(re.findall(rf"<!-- statement: {kind} (.+?) -->\n```\w+\n(.*?)\n```\n", text, re.S))


def filled(value, holes):
    """A template with these values in the place of its holes."""
    if isinstance(value, dict):
        return {name: filled(it, holes) for name, it in value.items()}
    if isinstance(value, list):
        return [filled(it, holes) for it in value]
    if isinstance(value, str) and re.fullmatch("<[A-Z_]+>", value):
        return holes[value[1:-1]]
    return value


def mine_of(document, lease, now):
    """The live holder with this lease, or None. An expired holder counts as none."""
    if document is None:
        return None
    if document.get("schema") != SCHEMA:
        raise RuntimeError("the document is no lock of this version")
    if (document.get("expires_at") or 0) <= now:
        return None
    holders = [document] if document.get("lease") else document.get("holders", [])
    return next((it for it in holders if it["lease"] == lease and it["expires_at"] > now), None)


def answer(document, now, lease, sent):
    """Whether the lease is live, its fence, and until when its holder may rely on it, by the clock of this process."""
    mine = mine_of(document, lease, now)
    if mine is None:
        return {"live": False}
    left_ms = mine["expires_at"] - now - MARGIN_MS
    return {"live": True, "fence": mine.get("fence") or 0, "until": sent + left_ms / 1000}


class MongoDb:
    def __init__(self, uri, database, collection):
        import bson.json_util
        import pymongo
        from bson.codec_options import CodecOptions, DatetimeConversion
        from bson.datetime_ms import DatetimeMS

        self.bson, self.date, self.error = bson, DatetimeMS, pymongo.errors.DuplicateKeyError
        self.options = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
        self.database = pymongo.MongoClient(uri)[database]
        self.collection = collection
        read = bson.json_util.loads
        self.templates = {name: read(text) for name, text in page("mongodb.md", "template").items()}

    def send(self, name, key, lease=None, owner=None, ttl_ms=0):
        digits = max(n for n in range(7) if n == 0 or 10**n <= RETENTION_MS // 24)
        kept = RETENTION_MS + 10**digits + 2
        holes = {
            "COLLECTION": self.collection, "KEY": key, "LEASE": lease, "OWNER": owner, "NOTE": None,
            "TTL_MS": self.bson.Int64(ttl_ms), "KEPT_AFTER_TTL": self.date(ttl_ms + kept),
            "KEPT": self.date(kept), "STEP_DIGITS": self.bson.Int64(-digits),
        }  # fmt: skip
        command = filled(self.templates[name], holes)
        return self.database.command(command, codec_options=self.options)

    def ask(self, name, key, *values):
        """The document after a statement, and the server's time in milliseconds; None twice without a document."""
        while True:
            try:
                shown = self.send(name, key, *values)
            except self.error:
                continue
            rows = [shown["value"]] if name != "inspect" else shown["cursor"]["firstBatch"]
            if not rows or rows[0] is None:
                return None, None
            if "now" in rows[0]:
                return millis(rows[0]["document"]), int(rows[0]["now"])

    def release(self, key, lease):
        return self.send("release", key, lease)["nModified"] == 1


def millis(value):
    """The value with its dates in milliseconds."""
    if isinstance(value, dict):
        return {name: millis(it) for name, it in value.items()}
    if isinstance(value, list):
        return [millis(it) for it in value]
    return int(value) if type(value).__name__ == "DatetimeMS" else value


class Search:
    def __init__(self, url, alias):
        self.url, self.alias = url.rstrip("/"), alias
        page_of = "elasticsearch.md"
        self.templates = {name: json.loads(text) for name, text in page(page_of, "template").items()}
        texts, parts = page(page_of, "script"), json.loads(page(page_of, "scripts")["parts"])
        scripts = {name: "\n".join(texts[it] for it in made_of) for name, made_of in parts.items()}
        self.scripts = {f"SCRIPT_{name.upper()}": text for name, text in scripts.items()}
        found = self.send("index")
        aliases = {self.alias, self.alias + "-write"}
        if len(found) != 1 or not aliases <= set(next(iter(found.values()))["aliases"]):
            raise RuntimeError(f"one index has to be behind both of {aliases}: {found}")
        self.index = next(iter(found))

    def send(self, name, key="", lease=None, owner=None, ttl_ms=0):
        limiter = key.startswith("limiter:")
        holes = {
            "ID": f"limiter::{uuid.uuid5(LIMITERS, key)}" if limiter else key, "KEY": key,
            "LEASE": lease, "OWNER": owner, "NOTE": None, "TTL_MS": ttl_ms, **self.scripts,
        }  # fmt: skip
        request = self.templates[name]
        encoded = re.sub(r"[^0-9A-Za-z]", lambda it: "".join(f"%{b:02X}" for b in it[0].encode()), self.alias)
        path = request["path"].replace("<ALIAS>", encoded)
        lines = filled(request.get("lines", []), holes)
        body = "".join(json.dumps(line) + "\n" for line in lines).encode() or None
        kind = {"Content-Type": "application/x-ndjson"} if body else {}
        asked = urllib.request.Request(self.url + path, body, kind, method=request["method"])
        with urllib.request.urlopen(asked) as answered:
            return json.load(answered)

    def change(self, name, key, *values):
        """The answer to a change. A refusal of a node with too much to do, or of too many changes, is asked again."""
        while True:
            try:
                shown = self.send(name, key, *values)["items"][0]["update"]
            except urllib.error.HTTPError as error:
                shown = {"status": error.code, "_index": self.index}
            if shown["_index"] != self.index:
                raise RuntimeError(f"the locks have moved: {shown}")
            if shown["status"] in (200, 201, 404):
                return shown
            if shown["status"] not in (409, 429, 503):
                raise RuntimeError(f"the request failed: {shown}")
            time.sleep(0.1)

    def ask(self, name, key, *values):
        shown = self.change(name, key, *values)
        if shown["status"] == 404 and shown["error"]["type"] == "document_missing_exception":
            return None, None
        document = shown["get"]["_source"]
        return document, document["now" if shown["result"] == "noop" else "written_at"]

    def release(self, key, lease):
        return self.change("release", key, lease).get("result") == "updated"


def acquired(store, name, key, lease, *values):
    sent = time.monotonic()
    return answer(*store.ask(name, key, lease, *values), lease, sent)


def work(store, key, owner, ttl_ms, rounds, path):
    """Polls for the key, and renews each lease once. Whoever holds the key may append to the file."""
    for _ in range(rounds):
        lease = str(uuid.uuid4())
        while not (granted := acquired(store, "acquire", key, lease, owner, ttl_ms))["live"]:
            time.sleep(0.02)
        renewed = acquired(store, "renew", key, lease, None, ttl_ms)
        if not renewed["live"] or time.monotonic() >= renewed["until"]:
            raise RuntimeError(f"lost: {granted}, {renewed}")
        for line in "begin", "end":
            with open(path, "a", encoding="utf-8") as file:
                file.write(f"{line} {granted['fence']}\n")
        if not store.release(key, lease):
            raise RuntimeError(f"not released: {granted}")
    return {"rounds": rounds}


def run(store, command):
    match command:
        case ["acquire", key, lease, owner, ttl]:
            return acquired(store, "acquire", key, lease, owner, int(ttl))
        case ["renew", key, lease, ttl]:
            return acquired(store, "renew", key, lease, None, int(ttl))
        case ["release", key, lease]:
            return {"released": store.release(key, lease)}
        case ["inspect", key]:
            document, now = store.ask("inspect", key)
            return {"fence": document and document["fence"], "now": now}
        case ["work", key, owner, ttl, rounds, path]:
            return work(store, key, owner, int(ttl), int(rounds), path)
    raise RuntimeError(f"no command: {command}")


if __name__ == "__main__":
    of = {"mongodb": MongoDb, "search": Search}[sys.argv[1]](*sys.argv[2:])
    for line in sys.stdin:
        print(json.dumps(run(of, line.split())), flush=True)
