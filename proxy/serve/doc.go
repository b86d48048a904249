// Package serve answers the Kafka APIs that kshare itself is responsible for: the share-group APIs of KIP-932, the
// group-config parts of the config APIs, and what names a share group in the APIs of other group types.
//
// It takes decoded requests and returns decoded responses; sockets, frames and relaying belong to package proxy. A
// request is served in three steps: checks that need no state, the op (built here, judged by sharestate or coordinator
// at its place in the statelog), the bytes (proxy/upstream's batch cache). Nothing is decided on a cached view: a view
// only tells whether an op can matter.
//
// Invariants:
//   - A ShareFetch or ShareAcknowledge costs one Redis round trip: its share-partition ops and the move of its session
//     ride in one pipeline. While a fetch waits it writes nothing.
//   - Every acknowledgement that came in gets an answer, and an OK only after Redis confirmed the op.
//   - What a request took for a client that cannot be told about it is given back (see deliver.go), at the latest when
//     its share session ends.
//   - A record that wants a dead letter stays Archiving until that is written or given up; no request waits for it (see
//     dead_letters.go).
//   - Records in a response are never null; a request is answered within its MaxWait + 5 s.
package serve
