package proxy

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Metadata: relayed; the response's broker list rewritten
//
//   - v1: rack; v2: cluster id; v3: throttle time before the brokers; v9: flexible
//   - cluster id, controller and node ids stay upstream's
//   - only the broker array, which stands in front, is taken apart: a large
//     response's topics are copied, never decoded
//   - a broker without a port of ours is left out rather than named by its
//     real address

func rewriteMetadata(n *nodes, version int16, resp []byte) ([]byte, error) {
	r := kbin.Reader{Src: resp}
	flexible := version >= 9
	if flexible {
		kmsg.SkipTags(&r)
	}
	if version >= 3 {
		r.Int32()
	}
	front := len(resp) - len(r.Src)
	brokers, err := readBrokers(&r, version, flexible)
	if err != nil {
		return nil, fmt.Errorf("metadata v%d: %w", version, err)
	}
	rest := r.Src

	kept := brokers[:0]
	for _, b := range brokers {
		host, port, ok := n.rewrite(b.id, b.host, b.port)
		if ok {
			b.host, b.port = host, port
			kept = append(kept, b)
		}
	}
	out := make([]byte, 0, len(resp)+len(kept)*len(n.cfg.Advertise)+16)
	out = append(out, resp[:front]...)
	out = appendBrokers(out, kept, flexible)
	return append(out, rest...), nil
}

// broker is one entry of Metadata's broker list; tail is what stands behind
// the port (rack and tags), kept as it came.
type broker struct {
	id   int32
	host string
	port int32
	tail []byte
}

func readBrokers(r *kbin.Reader, version int16, flexible bool) ([]broker, error) {
	count := r.ArrayLen
	host := r.String
	rack := func() { r.NullableString() }
	if flexible {
		count, host = r.CompactArrayLen, r.CompactString
		rack = func() { r.CompactNullableString(); kmsg.SkipTags(r) }
	}
	if version == 0 {
		rack = func() {}
	}
	length := count()
	var brokers []broker
	for i := int32(0); i < length && r.Ok(); i++ {
		b := broker{id: r.Int32(), host: host(), port: r.Int32()}
		before := r.Src
		rack()
		b.tail = before[:len(before)-len(r.Src)]
		brokers = append(brokers, b)
	}
	if !r.Ok() {
		return nil, r.Complete()
	}
	return brokers, nil
}

func appendBrokers(dst []byte, brokers []broker, flexible bool) []byte {
	if flexible {
		dst = kbin.AppendCompactArrayLen(dst, len(brokers))
	} else {
		dst = kbin.AppendArrayLen(dst, len(brokers))
	}
	for _, b := range brokers {
		dst = kbin.AppendInt32(dst, b.id)
		if flexible {
			dst = kbin.AppendCompactString(dst, b.host)
		} else {
			dst = kbin.AppendString(dst, b.host)
		}
		dst = kbin.AppendInt32(dst, b.port)
		dst = append(dst, b.tail...)
	}
	return dst
}
