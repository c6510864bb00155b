"""What may come of each pair: what the one answers | what the other answers | how the tasks stand once all is swept.

Nearly all of it is what one verb after the other would have come to, in one of the two ways round. What is not stands
under a comment that says why it is lawful all the same. A test wants each line to be seen, and nothing else.

Tasks: status; of active ones "/" and their attempts, and "!" where they were asked to stop; waiting: pending, behind
parents; gone: deleted, or never made.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["LAWFUL"]

LAWFUL: Mapping[str, set[str]] = {
    "claim and claim: two tasks of one agent": {
        "claimed T | nothing | T running/1, U pending/0",
        "nothing | claimed T | T running/1, U pending/0",
    },
    "claim and claim: an agent's task, by name and in a batch": {
        "claimed T | nothing | T running/1",
        "nothing | claimed T | T running/1",
    },
    "claim and claim: one task of nobody": {
        "claimed T | nothing | T running/1",
        "nothing | claimed T | T running/1",
    },
    "claim and claim: two tasks of nobody": {
        "claimed T | claimed U | T running/1, U running/1",
        "nothing | claimed TU | T running/1, U running/1",
    },
    "claim and complete: the agent's next": {
        "nothing | completed | T completed, U pending/0",
        "claimed U | completed | T completed, U running/1",
    },
    "claim and complete: the child": {
        "nothing | completed | C pending/0, P completed",
        "claimed C | completed | C running/1, P completed",
    },
    "claim and fail: the agent's next": {
        "nothing | pending | T pending/1, U pending/0",
        "claimed U | pending | T pending/1, U running/1",
    },
    "claim and fail: a child that runs anyway": {
        "nothing | dead | C pending/0, P dead",
        "claimed C | dead | C running/1, P dead",
    },
    "claim and cancel: the task": {
        "claimed T | asked | T running/1!",
        "nothing | cancelled | T cancelled",
    },
    "claim and cancel: a task of nobody": {
        "claimed T | asked | T running/1!",
        "nothing | cancelled | T cancelled",
    },
    "claim and reap: the agent's expired one": {
        "nothing | T to pending | T pending/1",
        "claimed T | T to pending | T running/2",
    },
    "claim and reap: the agent's next": {
        "nothing | T to pending | T pending/1, U pending/0",
        "claimed T | T to pending | T running/2, U pending/0",
    },
    "claim and enqueue with key: the key's holder": {
        "claimed T | adopted T | N gone, T running/1",
    },
    "claim and enqueue with key: what is new": {
        "nothing | created | N pending/0",
        "claimed N | created | N running/1",
    },
    "claim and enqueue with parent: the parent": {
        "claimed P | created | N waiting/0, P running/1",
    },
    "claim and set_gate: the task": {
        "claimed T | not gated: running | P running/1, T running/1",
        "nothing | gated | P running/1, T waiting/0",
    },
    "claim and set_gate: a task let go": {
        "nothing | gated | P running/1, T pending/0",
        "claimed T | gated | P running/1, T running/1",
    },
    "claim and retry: the task": {
        "nothing | pending again | T pending/0",
        "claimed T | pending again | T running/1",
    },
    "claim and prune: a child of what goes": {
        "claimed T | pruned 1 | P gone, T running/1",
    },
    "complete and complete: sent twice": {
        "completed | completed | T completed",
    },
    "complete and complete: two parents": {
        "completed | completed | P completed, Q completed, X pending/0",
    },
    "complete and fail: one lease": {
        "completed | LeaseNotHeld (completed) | T completed",
        "LeaseNotHeld (pending) | pending | T pending/1",
    },
    "complete and fail: two parents": {
        "completed | dead | P completed, Q dead, X cancelled",
    },
    "complete and cancel: the task": {
        "completed | TransitionRefused (completed) | T completed",
        "completed | asked | T completed",
    },
    "complete and cancel: parent and child": {
        "completed | cancelled | P completed, X cancelled",
    },
    "complete and cancel: parent and grandchild": {
        "completed | cancelled | P completed, X pending/0, Y cancelled",
    },
    "complete and reap: the task": {
        "completed | nothing | T completed",
        "LeaseNotHeld (pending) | T to pending | T pending/1",
    },
    "complete and reap: two parents": {
        "completed | Q to dead | P completed, Q dead, X cancelled",
    },
    "complete and enqueue with key: the key's holder": {
        "completed | created | N pending/0, T completed",
        "completed | adopted T | N gone, T completed",
    },
    "complete and enqueue with key: a key used for ever": {
        "completed | adopted T | N gone, T completed",
    },
    "complete and enqueue with parent: the parent": {
        "completed | created | P completed, X pending/0",
    },
    "complete and enqueue with parent: one of two parents": {
        "completed | created | P completed, Q running/1, X waiting/0",
    },
    "complete and set_gate: the parent": {
        "completed | gated | P completed, X pending/0",
    },
    "complete and set_gate: the parent that is exchanged": {
        "completed | gated | P completed, Q running/1, X waiting/0",
    },
    "complete and retry: a key of both": {
        "completed | pending again | T completed, U pending/0",
        "completed | KeyHeld | T completed, U dead",
    },
    "complete and prune: the task": {
        "completed | pruned 1 | T gone",
        "completed | pruned 0 | T completed",
    },
    "complete and prune: the parent of what goes": {
        "completed | pruned 2 | P gone, X gone",
        "completed | pruned 1 | P completed, X gone",
        # Not one after the other: the prune passes over what the ending has locked; the next one takes it.
        "completed | pruned 0 | P completed, X cancelled",
    },
    "fail and fail: sent twice": {
        "pending | pending | T pending/1",
    },
    "fail and fail: two parents": {
        "dead | dead | P dead, Q dead, X cancelled",
    },
    "fail and fail: parents of one grandchild": {
        "dead | dead | P dead, Q dead, X cancelled, Y cancelled, Z cancelled",
    },
    "fail and cancel: the task": {
        "pending | cancelled | T cancelled",
        "cancelled | asked | T cancelled",
    },
    "fail and cancel: for the last time": {
        "dead | TransitionRefused (dead) | T dead",
        "cancelled | asked | T cancelled",
    },
    "fail and cancel: parent and child": {
        "dead | TransitionRefused (cancelled) | P dead, X cancelled, Y cancelled",
        "dead | cancelled | P dead, X cancelled, Y cancelled",
    },
    "fail and reap: the task": {
        "pending | nothing | T pending/1",
        "LeaseNotHeld (pending) | T to pending | T pending/1",
    },
    "fail and reap: for the last time": {
        "dead | nothing | T dead",
        "LeaseNotHeld (dead) | T to dead | T dead",
    },
    "fail and enqueue with key: the key's holder": {
        "dead | created | N pending/0, T dead",
        "dead | adopted T | N gone, T dead",
    },
    "fail and enqueue with parent: the parent": {
        "dead | created | P dead, X cancelled",
    },
    "fail and enqueue with parent: the parent, whatever becomes of it": {
        "dead | created | P dead, X pending/0",
    },
    "fail and enqueue with parent: a grandchild": {
        "dead | created | P dead, X cancelled, Y cancelled",
    },
    "fail and set_gate: the parent": {
        "dead | gated | P dead, X cancelled",
    },
    "fail and set_gate: the child let go": {
        "dead | not gated: cancelled | P dead, X cancelled",
        "dead | gated | P dead, X pending/0",
    },
    "fail and set_gate: the grandchild moved": {
        "dead | not gated: cancelled | P dead, X cancelled, Y cancelled",
        "dead | gated | P dead, X cancelled, Y cancelled",
    },
    "fail and retry: the task": {
        "dead | pending again | T pending/0",
        "dead | TransitionRefused (running) | T dead",
    },
    "fail and retry: a key of both": {
        "dead | pending again | T dead, U pending/0",
        "dead | KeyHeld | T dead, U dead",
    },
    "fail and prune: the task": {
        "dead | pruned 1 | T gone",
        "dead | pruned 0 | T dead",
    },
    "fail and prune: the parent of what goes": {
        "dead | pruned 2 | P gone, X gone",
        "dead | pruned 0 | P dead, X cancelled",
        # Not one after the other: the prune came too early for the child.
        "dead | pruned 1 | P gone, X cancelled",
    },
    "cancel and cancel: the task": {
        "cancelled | TransitionRefused (cancelled) | T cancelled",
        "TransitionRefused (cancelled) | cancelled | T cancelled",
    },
    "cancel and cancel: while it runs": {
        "asked | asked | T running/1!",
    },
    "cancel and cancel: parent and child": {
        "cancelled | TransitionRefused (cancelled) | P cancelled, X cancelled",
        "cancelled | cancelled | P cancelled, X cancelled",
    },
    "cancel and cancel: the older is the child": {
        "cancelled | TransitionRefused (cancelled) | B cancelled, P cancelled",
        "cancelled | cancelled | B cancelled, P cancelled",
    },
    "cancel and reap: the task": {
        "asked | T to cancelled | T cancelled",
        "cancelled | T to pending | T cancelled",
        # Not one after the other: the reaper passes over what somebody writes just now, and comes again.
        "asked | nothing | T running/1!",
    },
    "cancel and reap: child of the expired": {
        "cancelled | P to dead | P dead, X cancelled",
        "TransitionRefused (cancelled) | P to dead | P dead, X cancelled",
    },
    "cancel and enqueue with key: the key's holder": {
        "cancelled | created | N pending/0, T cancelled",
        "cancelled | adopted T | N gone, T cancelled",
    },
    "cancel and enqueue with parent: the parent": {
        "cancelled | created | P cancelled, X cancelled",
    },
    "cancel and enqueue with parent: the parent's parent": {
        "cancelled | created | P cancelled, X cancelled, Y cancelled",
    },
    "cancel and set_gate: the child": {
        "cancelled | not gated: cancelled | P running/1, X cancelled",
        "cancelled | gated | P running/1, X cancelled",
    },
    "cancel and set_gate: the parent": {
        "cancelled | gated | P cancelled, X cancelled",
    },
    "cancel and set_gate: the child let go": {
        "cancelled | not gated: cancelled | P cancelled, X cancelled",
        "cancelled | gated | P cancelled, X pending/0",
    },
    "cancel and retry: the task": {
        "TransitionRefused (dead) | pending again | T pending/0",
        "cancelled | pending again | T cancelled",
    },
    "cancel and retry: the key's holder": {
        "cancelled | pending again | T cancelled, U pending/0",
        "cancelled | KeyHeld | T cancelled, U dead",
    },
    "cancel and prune: the task": {
        "cancelled | pruned 1 | T gone",
        "cancelled | pruned 0 | T cancelled",
    },
    "cancel and prune: the parent of what goes": {
        "cancelled | pruned 3 | P gone, X gone, Y gone",
        "cancelled | pruned 1 | P cancelled, X cancelled, Y gone",
        # Not one after the other: the prune passes over what the ending has locked; the next one takes it.
        "cancelled | pruned 0 | P cancelled, X cancelled, Y cancelled",
    },
    "reap and reap: two of them": {
        "T to pending, U to dead | nothing | T pending/1, U dead",
        "nothing | T to pending, U to dead | T pending/1, U dead",
    },
    "reap and reap: parents of one child": {
        "P to dead, Q to dead | nothing | P dead, Q dead, X cancelled",
        "nothing | P to dead, Q to dead | P dead, Q dead, X cancelled",
    },
    "reap and enqueue with key: the key's holder": {
        "T to dead | created | N pending/0, T dead",
        "T to dead | adopted T | N gone, T dead",
    },
    "reap and enqueue with parent: the parent": {
        "P to dead | created | P dead, X cancelled",
    },
    "reap and enqueue with parent: a parent that goes on": {
        "P to pending | created | P pending/1, X waiting/0",
    },
    "reap and set_gate: the parent": {
        "P to dead | gated | P dead, X cancelled",
    },
    "reap and retry: the task": {
        "T to dead | pending again | T pending/0",
        "T to dead | TransitionRefused (running) | T dead",
    },
    "reap and retry: a key of both": {
        "T to dead | pending again | T dead, U pending/0",
        "T to dead | KeyHeld | T dead, U dead",
    },
    "reap and prune: the task": {
        "T to cancelled | pruned 1 | T gone",
        "T to cancelled | pruned 0 | T cancelled",
    },
    "enqueue with key and enqueue with key: one key": {
        "created | adopted M | M pending/0, N gone",
        "adopted N | created | M gone, N pending/0",
    },
    "enqueue with key and enqueue with key: one key, once for ever": {
        "created | adopted M | M pending/0, N gone",
        "adopted N | created | M gone, N pending/0",
    },
    "enqueue with key and enqueue with key: both modes": {
        "created | adopted M | M pending/0, N gone",
        "adopted N | created | M gone, N pending/0",
    },
    "enqueue with key and enqueue with key: two agents": {
        "created | created | M pending/0, N pending/0",
    },
    "enqueue with key and enqueue with key: one key, two agents have it": {
        "adopted T | adopted U | M gone, N gone, T pending/0, U pending/0",
    },
    "enqueue with key and enqueue with key: one id": {
        "created | adopted N | N pending/0",
        "adopted N | created | N pending/0",
    },
    "enqueue with key and enqueue with parent: one key": {
        "created | adopted M | M pending/0, N gone, P running/1",
        "adopted N | created | M gone, N waiting/0, P running/1",
    },
    "enqueue with key and set_gate: the key's holder": {
        "adopted T | gated | N gone, P running/1, T waiting/0",
    },
    "enqueue with key and retry: the key of the dead": {
        "created | KeyHeld | N pending/0, T dead",
        "adopted T | pending again | N gone, T pending/0",
    },
    "enqueue with key and retry: the key for ever of the dead": {
        "adopted T | pending again | N gone, T pending/0",
    },
    "enqueue with key and prune: the key's last holder": {
        "created | pruned 1 | N pending/0, T gone",
    },
    "enqueue with key and prune: a key used for ever": {
        "adopted T | pruned 1 | N gone, T gone",
        "created | pruned 1 | N pending/0, T gone",
    },
    "enqueue with parent and enqueue with parent: one parent": {
        "created | created | P running/1, X waiting/0, Y waiting/0",
    },
    "enqueue with parent and enqueue with parent: each the other's": {
        "created | CircularDependency | X pending/0, Y gone",
        "CircularDependency | created | X gone, Y pending/0",
        # Not one after the other: nobody could see the circle; the sweep did.
        "created | created | X cancelled, Y cancelled",
    },
    "enqueue with parent and set_gate: the parent": {
        "created | gated | P waiting/0, Q running/1, X waiting/0",
    },
    "enqueue with parent and set_gate: a circle": {
        "created | CircularDependency | P pending/0, X waiting/0",
        "CircularDependency | gated | P pending/0, X gone",
        # Not one after the other: nobody could see the circle; the sweep did.
        "created | gated | P cancelled, X cancelled",
    },
    "enqueue with parent and retry: the dead parent": {
        "created | pending again | P pending/0, X waiting/0",
    },
    "enqueue with parent and prune: the parent": {
        "created | pruned 1 | P gone, X pending/0",
    },
    "enqueue with parent and prune: a dead parent": {
        "created | pruned 0 | P dead, X cancelled",
        "created | pruned 1 | P gone, X pending/0",
    },
    "set_gate and set_gate: the task": {
        "gated | gated | P running/1, Q running/1, T waiting/0",
    },
    "set_gate and set_gate: a circle": {
        "gated | CircularDependency | X waiting/0, Y pending/0",
        "CircularDependency | gated | X pending/0, Y waiting/0",
        # Not one after the other: nobody could see the circle; the sweep did.
        "gated | gated | X cancelled, Y cancelled",
    },
    "set_gate and retry: the dead parent": {
        "gated | pending again | P pending/0, X waiting/0",
    },
    "set_gate and retry: the task": {
        "not gated: dead | pending again | P running/1, T pending/0",
        "gated | pending again | P running/1, T waiting/0",
    },
    "set_gate and prune: the parent": {
        "gated | pruned 1 | P gone, X pending/0",
    },
    "set_gate and prune: a dead parent": {
        "gated | pruned 0 | P dead, X cancelled",
        "gated | pruned 1 | P gone, X pending/0",
    },
    "set_gate and prune: the last child": {
        "gated | pruned 1 | P gone, X pending/0",
        "gated | pruned 0 | P dead, X pending/0",
    },
    "retry and retry: the task": {
        "pending again | TransitionRefused (pending) | T pending/0",
        "TransitionRefused (pending) | pending again | T pending/0",
    },
    "retry and retry: one key": {
        "pending again | KeyHeld | T pending/0, U dead",
        "KeyHeld | pending again | T dead, U pending/0",
    },
    "retry and prune: the task": {
        "pending again | pruned 0 | T pending/0",
        "TaskNotFound | pruned 1 | T gone",
    },
    "prune and prune: the same": {
        "pruned 2 | pruned 0 | T gone, U gone",
        "pruned 0 | pruned 2 | T gone, U gone",
        # Not one after the other: each passes over what the other has.
        "pruned 1 | pruned 1 | T gone, U gone",
    },
    "prune and prune: parent and child": {
        "pruned 2 | pruned 0 | P gone, X gone",
        "pruned 0 | pruned 2 | P gone, X gone",
    },
    "reap and renew: the lease": {
        "T to pending | LeaseNotHeld (pending) | T pending/1",
        "nothing | renewed | T running/1",
    },
    "cancel and renew: the task": {
        "asked | renewed, told to stop | T running/1!",
        "asked | renewed | T running/1!",
    },
    "cancel and release: the task": {
        "asked | cancelled | T cancelled",
        "cancelled | pending | T cancelled",
    },
    "complete and evict: the holder": {
        "completed | TransitionRefused (completed) | T completed",
        "LeaseNotHeld (pending) | pending | T pending/0",
    },
    "sweep and complete: an edge left over": {
        "swept | completed | P completed, X pending/0",
    },
    "sweep and fail: the parent of an edge left over": {
        "swept | dead | P dead, X cancelled",
    },
    "sweep and enqueue with parent: an edge left over": {
        "swept | created | P dead, X cancelled, Y cancelled",
    },
    "sweep and set_gate: an edge left over": {
        "swept | not gated: cancelled | P dead, X cancelled",
        "swept | gated | P dead, X pending/0",
    },
    "sweep and retry: the dead parent of an edge left over": {
        "swept | pending again | P pending/0, X cancelled",
        "swept | pending again | P pending/0, X waiting/0",
    },
    "sweep and prune: the parent of an edge left over": {
        "swept | pruned 2 | P gone, X gone",
        "swept | pruned 0 | P dead, X cancelled",
        # Not one after the other: the prune came too early for the child.
        "swept | pruned 1 | P gone, X cancelled",
    },
    "sweep and sweep: an edge left over": {
        "swept | swept | P dead, X cancelled, Y cancelled",
    },
}
