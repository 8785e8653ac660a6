"""What was queued for a dead process must not reach its successor, which binds the same address."""

import os
from pathlib import Path

import zmq

from gllm.runtime.channels import Inbox, Outbox
from gllm.runtime.messages import AbortRequest, Codec


def test_a_successor_gets_only_what_was_sent_to_it(tmp_path: Path):
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    address = f"ipc://{tmp_path}/encoder0"
    outbox = Outbox(context, address, Codec())
    outbox.send(AbortRequest("for the dead one"))
    outbox.discard()
    outbox = Outbox(context, address, Codec())
    inbox = Inbox(context, address, Codec())
    outbox.send(AbortRequest("for the successor"))
    assert inbox.receive(10_000) == AbortRequest("for the successor")
    assert inbox.receive(100) is None
    inbox.close()
    outbox.close()
    context.term()
    assert not [name for name in os.listdir(tmp_path) if name != "encoder0"]
