"""talk.py - conversations that the server keeps, under kill -9: each turn names what it goes on from, and takes the name.

One thread holds one conversation at a time: it goes on from a name, now and then it forks from an earlier response by its id.  Each turn has an
Idempotency-Key and is asked for until it is answered, lives later if need be.  After each the name must stand for it.  At
the end a plain server is asked every turn with the whole list of messages, answers as they came: it must say the same."""
import threading
import time

from http_reply import Cut, Silent, call
from jobs import RETRY, Fault, make_rng
from specimens import norm, text

CHAT = "/v1/chat/completions"
TURNS = 8


class Turn:
    def __init__(self, before, fields, message):
        self.before = before    # a Turn or None
        self.fields, self.message = fields, message
        self.reply = None

    def messages(self):
        if not self.before:
            return [self.message]
        return [*self.before.messages(), self.before.reply["choices"][0]["message"], self.message]


class Talk(threading.Thread):
    def __init__(self, world, number, key, patience):
        super().__init__(daemon=True)
        self.world, self.number, self.patience = world, number, patience
        self.head = [f"Authorization: Bearer {key}"]
        self.rng = make_rng(world.seed, "talk", number)
        self.turns = []  # that were answered
        self.asked = 0

    def __str__(self):
        return f"talk {self.number}"

    def ask(self, method, path, body=None, head=()):
        """Until it is answered; None: the clients are to stop."""
        while not self.world.stop.is_set():
            port = self.world.port
            if port:
                try:
                    status, reply = call(port, method, path, body, [*self.head, *head], self.patience)
                    if status not in RETRY:
                        return status, reply
                except (Cut, Silent):
                    pass
            time.sleep(0.01)
        return None

    def turn(self, name, before, fork):
        rng = self.rng
        fields = {"seed": rng.randrange(1 << 40), "temperature": rng.choice([0, 0.8, 1.2]), "max_tokens": rng.randrange(1, 40),
                  "return_token_ids": True}
        t = Turn(before, fields, {"role": "user", "content": "wander " + text(rng, rng.randrange(1, 12))})
        body = {**fields, "messages": [t.message], "response_name": name + "-fork" if fork else name}
        if before:
            body["previous_response_id"] = before.reply["id"] if fork else name
        self.asked += 1
        answer = self.ask("POST", CHAT, body, [f"Idempotency-Key: talk-{self.number}-{self.asked}"])
        if not answer:
            return None
        status, t.reply = answer
        if status != 200:
            raise Fault(f"turn {self.asked} is answered {status} {t.reply}")
        self.turns.append(t)
        found = self.ask("GET", f"{CHAT}/{body['response_name']}")
        if found and (found[0] != 200 or norm(found[1]) != norm(t.reply)):
            raise Fault(f"{body['response_name']} is {found[0]} {found[1].get('id')}, not {t.reply['id']}")
        return t

    def run(self):
        talks = 0
        try:
            while not self.world.stop.is_set() and len(self.turns) < 400:
                talks += 1
                name, last = f"talk-{self.number}-{talks}", None
                for _ in range(TURNS):
                    if not (t := self.turn(name, last, False)):
                        return
                    if last and self.rng.random() < 0.3 and not self.turn(name, last, True):
                        return
                    last = t
        except Exception as e:  # what a client cannot read is a failure too
            self.world.fault(self, e if isinstance(e, Fault) else repr(e))

    def check(self, port):
        """Every turn as a plain server answers the whole list.  Returns how many."""
        for t in self.turns:
            status, reply = call(port, "POST", CHAT, {**t.fields, "messages": t.messages()}, self.head, 120)
            if status != 200 or norm(reply)[0] != norm(t.reply)[0]:
                self.world.fault(self, f"{t.reply['id']} is {norm(t.reply)[0][:300]}, the whole list gives {norm(reply)[0][:300]}")
        return len(self.turns)
