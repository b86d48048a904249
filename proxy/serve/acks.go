package serve

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/upstream"
	"kshare/sharestate"
)

// ackPart is what one request acknowledges on one partition, and how that went.
type ackPart struct {
	upstream.TP
	// batches is empty where the partition was only named.
	batches []sharestate.AckBatch
	code    int16
	message *string
	// done: code is the answer. Until then the acknowledgement has not been tried. refused: it was never tried.
	done, refused bool
}

// refuse settles the acknowledgement without trying it.
func (a *ackPart) refuse(code int16) {
	a.code, a.done, a.refused = code, true, true
}

// pending tells whether there is something to be applied.
func (a *ackPart) pending() bool { return a != nil && !a.done && len(a.batches) > 0 }

// releases gives the lowest offset that the acknowledgements, still to be applied, release.
func (a *ackPart) releases() (first int64, ok bool) {
	if !a.pending() {
		return 0, false
	}
	for _, b := range a.batches {
		i := slices.Index(b.Types, sharestate.AckRelease)
		if i >= 0 && (!ok || b.First+int64(i) < first) {
			first, ok = b.First+int64(i), true
		}
	}
	return first, ok
}

// ackList holds the acknowledgements of a request by partition, in the order in which they were named.
type ackList struct {
	parts []*ackPart
	by    map[upstream.TP]*ackPart
	// any: at least one partition has batches.
	any bool
}

// add enters a partition. A partition named twice is one; the last entry with batches wins (librdkafka names partitions
// once for the session and once for the acknowledgements).
func (l *ackList) add(tp upstream.TP, batches []sharestate.AckBatch) {
	if l.by == nil {
		l.by = map[upstream.TP]*ackPart{}
	}
	a := l.by[tp]
	if a == nil {
		a = &ackPart{TP: tp}
		l.by[tp] = a
		l.parts = append(l.parts, a)
	}
	if len(batches) > 0 {
		a.batches = batches
		l.any = true
	}
}

// fetchAcks converts the batches of a ShareFetch entry.
func fetchAcks(in []kmsg.ShareFetchRequestTopicPartitionAcknowledgementBatch) []sharestate.AckBatch {
	out := make([]sharestate.AckBatch, len(in))
	for i, b := range in {
		out[i] = ackBatch(b.FirstOffset, b.LastOffset, b.AcknowledgeTypes)
	}
	return out
}

// plainAcks converts the batches of a ShareAcknowledge entry.
func plainAcks(in []kmsg.ShareAcknowledgeRequestTopicPartitionAcknowledgementBatch) []sharestate.AckBatch {
	out := make([]sharestate.AckBatch, len(in))
	for i, b := range in {
		out[i] = ackBatch(b.FirstOffset, b.LastOffset, b.AcknowledgeTypes)
	}
	return out
}

func ackBatch(first, last int64, types []int8) sharestate.AckBatch {
	b := sharestate.AckBatch{First: first, Last: last, Types: make([]sharestate.AckType, len(types))}
	for i, t := range types {
		b.Types[i] = sharestate.AckType(t)
	}
	return b
}

// validate refuses the partitions whose batches fail the checks that need no state.
func (l *ackList) validate(renew bool) {
	for _, a := range l.parts {
		if code := validateAcks(a.batches, renew); code != codeNone {
			a.refuse(code)
		}
	}
}

// validateAcks applies those checks to one partition's batches, in their order. Renew needs a request that says so, which
// version 1 cannot.
func validateAcks(batches []sharestate.AckBatch, renew bool) int16 {
	for i, b := range batches {
		switch {
		case b.First > b.Last,
			i > 0 && b.First < batches[i-1].Last,
			len(b.Types) == 0,
			len(b.Types) > 1 && int64(len(b.Types)) != b.Last-b.First+1:
			return codeInvalidRequest
		}
		for _, t := range b.Types {
			if t < sharestate.AckGap || t > sharestate.AckRenew || t == sharestate.AckRenew && !renew {
				return codeInvalidRequest
			}
		}
	}
	return codeNone
}

// The texts beside errors that the share-partition's state gives; malformed batches have none. A broker has several for
// an invalid state, which tell who holds the record and why not.
var (
	renewDisabled = "Renewing acquisition locks is not enabled for the group."
	invalidState  = "The record state is invalid. The acknowledgement of delivery could not be completed."
	pastAcquired  = "Batch record not found. The last offset in request is past acquired records."
)

// settle books the result of the Acknowledge op.
func (a *ackPart) settle(res []byte, err error) {
	if err == nil {
		var r sharestate.AcknowledgeResult
		if r, err = sharestate.DecodeAcknowledgeResult(res); err == nil {
			a.done = true
			switch r.Code {
			case sharestate.AckOK:
			case sharestate.AckInvalidRequest:
				a.code, a.message = codeInvalidRequest, &pastAcquired
			case sharestate.AckRenewDisabled:
				a.code, a.message = codeInvalidState, &renewDisabled
			default:
				a.code, a.message = codeInvalidState, &invalidState
			}
			return
		}
	}
	a.code, a.done = ackTrouble(err), true
}
