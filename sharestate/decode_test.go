package sharestate

import "fmt"

// decodeOp reads what EncodeOp wrote, which replicas leave to Apply. It returns ErrMalformed or ErrUnknownKind,
// wrapped; it neither panics nor allocates more than a small multiple of len(b).
func decodeOp(b []byte) (Op, error) {
	if len(b) == 0 {
		return nil, fmt.Errorf("%w: empty op", ErrMalformed)
	}
	r := reader{b: b[1:]}
	var op Op
	switch b[0] {
	case kindFence:
		op = Fence{}
	case kindStart:
		op = r.start()
	case kindAcquire:
		var o acquireOp
		o.decode(&r)
		o.Member = string(o.member)
		op = o.Acquire
	case kindAcquireUnder:
		epoch := r.int32()
		var o acquireOp
		o.decode(&r)
		o.Member = string(o.member)
		op = AcquireUnder{epoch, o.Acquire}
	case kindAcknowledge:
		var o acknowledgeOp
		o.decode(&r)
		op = o.export()
	case kindRelease:
		var o releaseOp
		o.decode(&r)
		op = Release{string(o.member), o.session, o.settings}
	case kindReleaseReplica:
		op = r.releaseReplica()
	case kindExpire:
		op = Expire{r.settings()}
	case kindAdvanceLogStart:
		op = r.advanceLogStart()
	case kindLogStartUnder:
		op = LogStartUnder{r.int32(), r.advanceLogStart()}
	case kindReset:
		op = r.reset()
	case kindClaimArchiving:
		op = r.claimArchiving()
	case kindArchivingDone:
		op = r.archivingDone()
	case kindLeaderChange:
		op = r.leaderChange()
	default:
		return nil, fmt.Errorf("%w %d", ErrUnknownKind, b[0])
	}
	if err := r.end(); err != nil {
		return nil, fmt.Errorf("%w: op kind %d", err, b[0])
	}
	return op, nil
}

func (o *acknowledgeOp) export() Acknowledge {
	out := Acknowledge{Member: string(o.member), LeaderEpoch: o.leaderEpoch, Settings: o.settings}
	if len(o.batches) > 0 {
		out.Batches = make([]AckBatch, len(o.batches))
	}
	for i, b := range o.batches {
		out.Batches[i] = AckBatch{First: b.first, Last: b.last}
		if len(b.types) > 0 {
			out.Batches[i].Types = make([]AckType, len(b.types))
		}
		for j, t := range b.types {
			out.Batches[i].Types[j] = AckType(t)
		}
	}
	return out
}

// startResult is the result of a [Start]: the SPSO in force, or -1 if none is.
type startResult struct{ Offset int64 }

func decodeStartResult(b []byte) (startResult, error) {
	r := reader{b: b}
	return startResult{r.varint()}, r.end()
}
