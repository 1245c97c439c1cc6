"""plants.py - faults put in on purpose, to see that the crash test finds them.  Each happens once.

event-dropped, event-changed, event-twice   in what a client reads: as if the server had sent it so
accept-lost                                 a running request is taken out of the log between two lives: a commit that was
                                            confirmed and is not there
event-lost, text-changed                    the last text of a request that ended is taken out of the log, or changed
finish-changed                              another finish record: the end of a finished request is not what it was
A lost end of a running request's events is not among them: it is what a crash may do, and is computed again."""
import json
import os
import sqlite3

ALL = ["event-dropped", "event-changed", "event-twice", "accept-lost", "event-lost", "text-changed", "finish-changed"]


class Plant:
    def __init__(self, name):
        self.name, self.over, self.count, self.held = name, False, 0, None

    def event(self, number, data):
        """(number, data, skip) of what a client is to see of an event."""
        if self.over or number < 3 or not self.name.startswith("event-") or self.name == "event-lost":
            return number, data, False
        self.count += 1
        if self.count < 200:
            return number, data, False
        if self.name == "event-dropped":
            self.over = True
            return number, data, True
        if self.name == "event-twice":
            self.over = True
            return number - 1, data, False
        event = json.loads(data)
        choice = event["choices"][0] if event["choices"] else {}
        where, name = (choice, "text") if "text" in choice else (choice.get("delta", {}), "content")
        if where.get(name):
            where[name] += "~"
            self.over = True
        return number, json.dumps(event) if self.over else data, False

    def log(self, state, done, unfinished):
        """Between two lives."""
        path = os.path.join(state, "requests.db")
        if self.over or self.name.startswith("event-") and self.name != "event-lost" or not os.path.exists(path):
            return
        db = sqlite3.connect(path)
        try:
            named = {j.who[0]: j for j in (unfinished if self.name == "accept-lost" else done)
                     if j.who and j.keyed and not j.cancelled and not (self.name == "accept-lost" and j.end)}
            state = 0 if self.name == "accept-lost" else 1
            for ord_, id_ in db.execute("SELECT r.ord, CAST(r.id AS TEXT) FROM request r JOIN outcome o ON o.ord = r.ord "
                                        "WHERE o.state = ?", (state,)).fetchall():
                if id_ not in named:
                    continue
                if self.name == "accept-lost":
                    for table in ("event", "outcome", "request"):
                        db.execute(f"DELETE FROM {table} WHERE ord = ?", (ord_,))
                elif self.name == "finish-changed":
                    db.execute("UPDATE outcome SET finish = substr(finish, 1, length(finish) - 1) || x'7f' WHERE ord = ?",
                               (ord_,))
                else:
                    at = db.execute("SELECT choice, idx FROM event WHERE ord = ? AND length(text) > 0 "
                                    "ORDER BY choice DESC, idx DESC", (ord_,)).fetchone()
                    if not at:
                        continue
                    what = "DELETE FROM event" if self.name == "event-lost" else "UPDATE event SET text = x'7e'"
                    db.execute(what + " WHERE ord = ? AND choice = ? AND idx = ?", (ord_, *at))
                db.commit()
                self.over = True
                return
        finally:
            db.close()
