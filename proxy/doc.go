// Package proxy is kshare's front: it accepts Kafka clients, relays what they
// ask to the real cluster and answers what concerns share groups itself.
//
// Every client connection has one upstream connection of its own, dialled to
// the node that the client's port or TLS server name stands for, so that upstream sees the
// client's own SASL session and quotas. Two goroutines run a connection: one
// reads requests (conn.go), one reads upstream's answers (answers.go).
//
// Invariants:
//   - Responses leave in the order of their requests. Relayed requests are
//     pipelined; a request that kshare answers itself waits until everything
//     before it is answered, and nothing behind it is sent on until it is,
//     just as a broker takes one request of a connection at a time.
//   - Whatever stands between two served requests on the upstream connection
//     was put there in order, kshare's own questions (ask.go) included.
//   - Bytes that need no rewriting are never decoded and never held whole.
//   - No address of the real cluster reaches a client, neither in a field that
//     clients connect to nor in text: each API that carries one is rewritten or
//     kept to versions that carry none (route.go, addresses.go).
//   - Nothing is served before upstream accepted the connection.
package proxy
