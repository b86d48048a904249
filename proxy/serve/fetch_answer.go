package serve

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/upstream"
)

// answer fills the response: what a broker lists, and what it leaves out (KIP-932).
func (f *fetch) answer(resp *kmsg.ShareFetchResponse) {
	resp.AcquisitionLockTimeoutMillis = f.cfg.LockDurationMs
	told := map[upstream.TP]sessionPart{}
	topics := map[[16]byte]int{}
	ackEntries := f.ackEntries()
	for _, it := range f.items {
		if it.code == codeNone && it.trouble != nil && it.inSession {
			it.code, _ = partitionTrouble(it.trouble)
		}
		listed := it.inSession && !f.visit.final && (it.code != codeNone || len(it.acquired) > 0 || it.part.owed && it.tried)
		if !listed && it.part.owed && f.visit.epoch == 0 {
			it.part.owed = false // what an opening request did not try is not made up for later
			told[it.part.TP] = it.part
		}
		if !listed && !ackEntries(it) {
			continue
		}
		entry := f.entry(it, listed)
		if ackEntries(it) && it.acks != nil {
			entry.AcknowledgeErrorCode, entry.AcknowledgeErrorMessage = it.acks.code, it.acks.message
		}
		if listed {
			it.part.owed = it.code != codeNone
			told[it.part.TP] = it.part
		}
		i, ok := topics[it.part.ID]
		if !ok {
			i = len(resp.Topics)
			topics[it.part.ID] = i
			t := kmsg.NewShareFetchResponseTopic()
			t.TopicID = it.part.ID
			resp.Topics = append(resp.Topics, t)
		}
		resp.Topics[i].Partitions = append(resp.Topics[i].Partitions, entry)
		if it.hint != nil && listed {
			resp.NodeEndpoints = addFetchEndpoint(resp.NodeEndpoints, f.s.endpoint(it.hint.node))
		}
	}
	f.visit.ss.book(told)
}

// ackEntries gives the partitions whose acknowledgement result is listed: with any batches in the request, all that it
// names, unless all that had batches failed their validation: then these only.
func (f *fetch) ackEntries() func(*fetchItem) bool {
	if !f.acks.any {
		return func(*fetchItem) bool { return false }
	}
	allFailed := true
	for _, a := range f.acks.parts {
		if len(a.batches) > 0 && !a.refused {
			allFailed = false
		}
	}
	return func(it *fetchItem) bool {
		return it.acks != nil && (len(it.acks.batches) > 0 || !allFailed)
	}
}

func (f *fetch) entry(it *fetchItem, listed bool) kmsg.ShareFetchResponseTopicPartition {
	p := kmsg.NewShareFetchResponseTopicPartition()
	p.Partition = it.part.Partition
	p.Records = []byte{} // kmsg writes nil as null, which Java clients cannot read
	if !listed {
		return p
	}
	p.ErrorCode = it.code
	if it.code != codeNone {
		// Some clients take (0, 0) beside an error for a move to node 0, so it is (-1, -1) unless the leader is known.
		p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch = -1, -1
		if it.hint != nil {
			p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch = it.hint.node, it.hint.epoch
		}
		return p
	}
	if len(it.acquired) == 0 {
		return p
	}
	p.Records = it.records
	p.AcquiredRecords = make([]kmsg.ShareFetchResponseTopicPartitionAcquiredRecord, len(it.acquired))
	for i, a := range it.acquired {
		e := &p.AcquiredRecords[i]
		e.FirstOffset, e.LastOffset, e.DeliveryCount = a.First, a.Last, a.DeliveryCount
	}
	return p
}

// endpoint is where clients reach a node through kshare; nil if that is not known.
func (s *Server) endpoint(node int32) *kmsg.ShareFetchResponseNodeEndpoint {
	if s.o.Endpoint == nil {
		return nil
	}
	host, port, ok := s.o.Endpoint(node)
	if !ok {
		return nil
	}
	e := kmsg.NewShareFetchResponseNodeEndpoint()
	e.NodeID, e.Host, e.Port = node, host, port
	return &e
}

func addFetchEndpoint(list []kmsg.ShareFetchResponseNodeEndpoint, e *kmsg.ShareFetchResponseNodeEndpoint) []kmsg.ShareFetchResponseNodeEndpoint {
	if e == nil || slices.ContainsFunc(list, func(o kmsg.ShareFetchResponseNodeEndpoint) bool { return o.NodeID == e.NodeID }) {
		return list
	}
	return append(list, *e)
}
