// Package statelog keeps deterministic state machines equal on every replica, with Redis as the total order.
//
// Each machine has one key, one Redis string:
//
//	snapshot frame, op frame, op frame, ...
//
// A replica appends its ops with one small script that stamps Redis' time and returns everything appended since the
// position the replica already knows. The replica folds those frames into its copy in order, and when it comes to its
// own frame it knows the results of its ops. There are no conflicts, no locks and no owner; nothing is ever decided on a
// cached view.
//
// Invariants:
//
//   - Every replica folds the same frames in the same order with the same (monotonic) time, so that all copies are equal
//     and byte-equal when encoded.
//   - A frame's token (writer, counter) is unique. A replica's position is a length and the token that ends there; a
//     mismatch means that the log was compacted, rolled back or replaced, and the copy is rebuilt.
//   - One writer has one frame in flight per key, and its counters rise. A fold ignores a frame whose counter is not
//     above the last one of its writer. So once a frame with a higher counter is in the log, a frame of unknown outcome
//     is either before it or void for good.
//   - An op is reported applied exactly if it is in the log; an answer other than [ErrUnavailable] is only given when
//     that is settled.
//   - A frame that cannot be understood stops its key on this replica ([ErrStopped]). Nothing is ever skipped.
//
// Keys, all behind "<prefix>:<cluster id>:"; a script touches one key, so any kind of Redis will do:
//
//	{<group>}, {<group>/<topic id>/<partition>}   logs
//	s:{<group>/<member>/<node>}                   share sessions
//	sessions:<replica>                            set: the sessions that a replica opened
//	replicas, lease:<replica>, dead:<replica>     registry, leases and tombstones of replicas; claim:<replica> while one is buried
//	groups                                        the index
//	wake                                          channel
//
// The package also holds what replicas need to know of each other: share sessions ([Store.OpenSession]), leases of live
// replicas and the detection of dead ones ([Store.OnReplicaDead]), a set of names ([Store.Index]), and wake-ups
// ([Log.Watch]).
package statelog
