// Package sharestate holds the state of one share-partition (KIP-932): which
// offsets are Available, Acquired, Acknowledged, Archiving or Archived, who holds
// them and until when.
//
// It is a pure core. A [Partition] changes only through [Partition.Apply], which
// takes an encoded [Op] and the time that the log stamped on it. There is no
// clock, no goroutine, no I/O and no map iteration whose order could show, so
// every replica that folds the same log reaches the same state, down to the
// bytes of its snapshot.
//
// Invariants, after every op:
//
//   - The ranges cover [SPSO, SPEO] without holes or overlaps, in order.
//   - The first range is not terminal; with nothing left to track there are no
//     ranges and the next acquisition starts at SPSO.
//   - Neighbours that agree in everything are one range, unless a tracked batch
//     (an AcquiredRecords entry as first handed out) begins between them.
//   - Only Acquired ranges have an owner and a lock deadline; Archiving ranges
//     may have a claim, Available ones that were delivered before may rest.
//
// Kafka's redelivery rules speak of the batches that an acquisition created, so
// the border between two of them is kept until both are finished.
package sharestate
