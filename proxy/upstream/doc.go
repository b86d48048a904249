// Package upstream is kshare's own client of the real cluster: who the nodes are, what topics there are, and the log.
//
// Reading is shared: however many groups, members and sessions read a partition, upstream is read once per isolation
// level. A Tail is one interest in a partition; all Tails of one partition and isolation level are one line, which has
// its batches in one cache, bounded by the memory that they pin.
//
//   - At the end of the log a line is in the poll of its leader: one fetch session per node and isolation level, long
//     polls on a connection of their own, never cancelled (poll.go).
//   - Everywhere else it is read by catch-up fetches on another connection: at once for who waits in Read, and ahead of
//     the wanted positions, a bounded number of bytes (catchup.go).
//   - What of the two a line needs is decided at one place, reader.schedule, after every event.
//
// Writing is for dead letters alone: one batch at a time, on a client of its own that is made for the first (write.go).
//
// Invariants: cached batches lie below the high watermark (read_committed: below the last stable offset) of the leader
// epoch that they were read in, and are dropped when the epoch changes; batches are never changed, so Views share them;
// all state of lines, cache and polls is guarded by one lock, under which nothing is read or written; upstream is asked
// on connections of kshare's service account, so who may see what is for the caller to decide.
package upstream
