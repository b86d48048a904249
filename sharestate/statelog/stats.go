package statelog

import "sync/atomic"

// Stats counts what a store has done since it was made.
type Stats struct {
	Pipelines   int64 // round trips
	Commands    int64 // commands sent, whatever they are for (not those of the subscription)
	Appends     int64 // op frames sent
	Ops         int64 // ops in them
	Fences      int64 // frames sent to settle an unknown outcome
	Reads       int64 // reads of a log, catch-ups included
	Reloads     int64 // copies rebuilt from a whole log, first loads included
	Compactions int64 // logs that this replica compacted
	Divergences int64 // copies that did not equal another replica's snapshot at the same position
	Stops       int64 // keys stopped because something in them is not understood
	Published   int64 // wake-up messages sent
	Reseeds     int64 // keys put back after Redis had lost them
}

type stats struct {
	pipelines, commands, appends, ops, fences, reads, reloads, compactions, divergences, stops, published, reseeds atomic.Int64
}

// Stats returns the counters.
func (s *Store) Stats() Stats {
	c := &s.stats
	return Stats{
		Pipelines: c.pipelines.Load(), Commands: c.commands.Load(), Appends: c.appends.Load(), Ops: c.ops.Load(),
		Fences: c.fences.Load(), Reads: c.reads.Load(), Reloads: c.reloads.Load(), Compactions: c.compactions.Load(),
		Divergences: c.divergences.Load(), Stops: c.stops.Load(), Published: c.published.Load(), Reseeds: c.reseeds.Load(),
	}
}
