package serve

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"kshare/proxy/upstream"
)

// sessionPart is one partition of a share session.
type sessionPart struct {
	upstream.TP
	// resolved: the topic id was known upstream at some time while in this session. An id that was never known is
	// answered UNKNOWN_TOPIC_ID, one that is known no more UNKNOWN_TOPIC_OR_PARTITION.
	resolved bool
	// owed: the next response lists the partition even if it is empty, because it is new or its last entry was an error
	//.
	owed bool
}

// sessionParts is the partition list of a share session, in the order in which they were added.
type sessionParts []sessionPart

const sessionBodyVersion = 1

// Flags of an entry in the encoded body.
const (
	flagResolved = 1 << 0
	flagOwed     = 1 << 1
)

var errSessionBody = errors.New("share session body is malformed")

// encode gives the session body that statelog stores: version, count, then topic id, partition and flags of each.
func (ps sessionParts) encode() []byte {
	b := make([]byte, 0, 2+len(ps)*19)
	b = append(b, sessionBodyVersion)
	b = binary.AppendUvarint(b, uint64(len(ps)))
	for _, p := range ps {
		b = append(b, p.ID[:]...)
		b = binary.AppendUvarint(b, uint64(uint32(p.Partition)))
		var flags byte
		if p.resolved {
			flags |= flagResolved
		}
		if p.owed {
			flags |= flagOwed
		}
		b = append(b, flags)
	}
	return b
}

// decodeSessionParts reads a session body.
func decodeSessionParts(b []byte) (sessionParts, error) {
	if len(b) == 0 {
		return nil, errSessionBody
	}
	if b[0] != sessionBodyVersion {
		return nil, fmt.Errorf("%w: version %d is not known here", errSessionBody, b[0])
	}
	b = b[1:]
	n, w := binary.Uvarint(b)
	if w <= 0 || n > uint64(len(b)-w)/18 { // an entry takes at least 18 bytes
		return nil, errSessionBody
	}
	b = b[w:]
	ps := make(sessionParts, n)
	for i := range ps {
		if len(b) < 18 {
			return nil, errSessionBody
		}
		copy(ps[i].ID[:], b)
		part, w := binary.Uvarint(b[16:])
		if w <= 0 || part > 1<<32-1 || len(b) < 17+w {
			return nil, errSessionBody
		}
		ps[i].Partition = int32(uint32(part))
		flags := b[16+w]
		ps[i].resolved, ps[i].owed = flags&flagResolved != 0, flags&flagOwed != 0
		b = b[17+w:]
	}
	if len(b) != 0 {
		return nil, errSessionBody
	}
	return ps, nil
}

// update returns the list after an incremental request: first with what it adds, then without what it forgets (spec
// 3.2). The receiver is left as it is.
func (ps sessionParts) update(add sessionParts, forget map[upstream.TP]bool) sessionParts {
	if len(add) == 0 && len(forget) == 0 {
		return ps
	}
	has := make(map[upstream.TP]bool, len(ps)+len(add))
	out := make(sessionParts, 0, len(ps)+len(add))
	for _, list := range []sessionParts{ps, add} {
		for _, p := range list {
			if !has[p.TP] && !forget[p.TP] {
				has[p.TP] = true
				out = append(out, p)
			}
		}
	}
	return out
}

// without is the list less the partitions of another one.
func (ps sessionParts) without(other sessionParts) sessionParts {
	return slices.DeleteFunc(slices.Clone(ps), func(p sessionPart) bool { return other.has(p.TP) })
}

func (ps sessionParts) has(tp upstream.TP) bool {
	return slices.ContainsFunc(ps, func(p sessionPart) bool { return p.TP == tp })
}

// rotated gives the order in which a fetch tries the partitions: rotated left by the session epoch, so that none
// starves.
func (ps sessionParts) rotated(epoch int32) sessionParts {
	if epoch < 1 || len(ps) < 2 {
		return ps
	}
	k := int(epoch) % len(ps)
	out := make(sessionParts, 0, len(ps))
	return append(append(out, ps[k:]...), ps[:k]...)
}
