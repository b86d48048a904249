// Package coordinator is the group coordinator of share groups (KIP-932): who is a member, which
// partitions each member consumes, which share-partitions are initialized, and the group's configs.
//
// It has two halves. Group is a pure state machine: no clock, no map order, no random, no float. Every
// replica folds the same ops at the same log time into the same state. Service is the replica's side:
// it turns requests into ops, submits them to the group's log in Redis (package statelog) and reads the
// answer from the op's own place in that log. Nothing is decided on a cached view.
//
// Invariants of Group:
//   - a member's epoch is the assignment epoch of the target that was last delivered to it;
//   - the assignment epoch is never above the group epoch;
//   - targets hold initialized partitions of topics that the member subscribes to, and every such
//     partition has at least one member once a target was computed;
//   - partition counts per topic id only grow, and incarnations only rise, also across a deletion.
package coordinator
