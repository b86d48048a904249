"""Runs one librdkafka share consumer under the command of a test.

A JSON object per line on standard input, an answer per line on standard output,
as the Java driver has it. librdkafka speaks version 1 of the share requests: no
acquire mode and no renewal.
"""

import json
import queue
import sys
import threading
import time

from confluent_kafka import AcknowledgeType, KafkaException, ShareConsumer


class Runs:
    """Folds consecutive offsets of one partition with one value into [partition, first, last, value]."""

    def __init__(self):
        self.out = []

    def add(self, partition, offset, value):
        if self.out:
            run = self.out[-1]
            if run[0] == partition and run[2] == offset - 1 and run[3] == value:
                run[2] = offset
                return
        self.out.append([partition, offset, offset, value])


class Share:
    def __init__(self, commands):
        self.commands = commands
        self.consumer = None
        self.topic = ""
        self.explicit = False

    def start(self, command):
        config = dict(command["config"])
        self.explicit = config.get("share.acknowledgement.mode") == "explicit"
        self.topic = command["topic"]
        self.consumer = ShareConsumer(config)
        self.consumer.subscribe([self.topic])
        return {}

    def poll(self, command):
        records = []
        for m in self.consumer.poll(timeout=command["timeoutMs"] / 1000.0):
            if m.error():
                raise KafkaException(m.error())
            records.append([m.partition(), m.offset(), m.delivery_count() or 0, (m.key() or b"").decode()])
        return {"records": records}

    def ack(self, command):
        self.consumer.acknowledge_offset(
            self.topic, command["partition"], command["offset"], AcknowledgeType[command["type"]])
        return {}

    def commit(self, _command):
        return {"errors": self.commit_errors()}

    def commit_errors(self, expected=frozenset()):
        result = self.consumer.commit_sync(timeout=30.0)
        errors = {str(tp.partition): str(e) for tp, e in result.items() if e is not None}
        for p in expected - {tp.partition for tp in result}:  # no answer is no success
            errors[str(p)] = "no result in the answer of commit_sync"
        return errors

    def audit(self, command):
        """Consumes until the next command; a line per poll that brought records."""
        reject_every = command.get("rejectEvery", 0)
        release_every = command.get("releaseEvery", 0)
        while self.commands.empty():
            try:
                messages = list(self.consumer.poll(timeout=0.2))
            except KafkaException as e:
                say({"pollError": str(e)})
                continue
            for m in messages:
                if m.error():
                    say({"pollError": str(m.error())})
            messages = [m for m in messages if not m.error()]
            if not messages:
                continue
            polled_at = now_ms()
            time.sleep(command.get("holdMs", 0) / 1000.0)  # the consumer's work
            delivered, acked = Runs(), Runs()
            for m in messages:
                count = m.delivery_count() or 0
                delivered.add(m.partition(), m.offset(), count)
                kind = AcknowledgeType.ACCEPT
                if self.explicit:
                    if reject_every and m.offset() % reject_every == reject_every - 1:
                        kind = AcknowledgeType.REJECT
                    elif release_every and count == 1 and m.offset() % release_every == 0:
                        kind = AcknowledgeType.RELEASE
                    self.consumer.acknowledge(m, kind)
                acked.add(m.partition(), m.offset(), int(kind))
            try:
                errors = self.commit_errors({m.partition() for m in messages})
            except KafkaException as e:
                errors = {"*": str(e)}
            say({"polledAt": polled_at, "ackedAt": now_ms(),
                 "delivered": delivered.out, "acked": acked.out, "errors": errors})
        return {}

    def close(self, _command):
        self.consumer.close()
        return {}


def now_ms():
    return time.time_ns() // 1_000_000


def say(line):
    sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def read_commands(commands):
    for line in sys.stdin:
        commands.put(json.loads(line))
    commands.put({"op": "exit"})


def main():
    commands = queue.Queue()
    threading.Thread(target=read_commands, args=(commands,), daemon=True).start()
    share = Share(commands)
    perform = {
        "start": share.start, "poll": share.poll, "ack": share.ack, "commit": share.commit,
        "audit": share.audit, "close": share.close, "stop": lambda _: {}, "exit": lambda _: {},
    }
    while True:
        command = commands.get()
        try:
            answer = perform[command["op"]](command)
            answer["ok"] = True
        except Exception as e:  # whatever it is, the test must hear of it
            answer = {"error": f"{type(e).__name__}: {e}"}
        say(answer)
        if command["op"] == "exit":
            return


if __name__ == "__main__":
    main()
