package proxy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/serve"
)

// twoFaced is a Produce request whose transactional id is as long as brokers
// take for negative, which is null. They go on at acks=1; who takes the length
// for 4 goes on at acks=0.
func twoFaced(corr int32) []byte {
	b := []byte{0, 0, 0, 0, 0, 0, 0, 9}
	b = binary.BigEndian.AppendUint32(b, uint32(corr))
	b = append(b, 0xff, 0xff, 0)                   // no client id, no tags
	b = append(b, 0x85, 0x80, 0x80, 0x80, 8)       // 2^31 + 5
	b = append(b, 0, 1, 0, 1, 0, 0, 0x10, 1, 0, 0) // acks 1, timeout 65536; or 4 bytes, acks 0
	return putSize(b, 0)
}

func TestLengthThatBrokersTakeForNegativeIsRefused(t *testing.T) {
	b := twoFaced(1)
	in := bufio.NewReaderSize(bytes.NewReader(b), readerSize)
	h, err := readHeader(in, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if silent, err := producesSilently(in, h); err == nil {
		t.Errorf("taken, with silence %v", silent)
	}
	tags := cursor{peek: in.Peek, off: 15, end: len(b)}
	if tags.skipTags(); tags.err == nil {
		t.Error("taken for a number of tags")
	}
	highest := cursor{peek: bufio.NewReader(bytes.NewReader([]byte{0xff, 0xff, 0xff, 0xff, 7})).Peek, end: 5}
	if n := highest.uvarint(); n != math.MaxInt32 || highest.err != nil {
		t.Errorf("%d, %v", n, highest.err)
	}
}

// An answer that has no place would be taken for that to the next question, and
// a client has a say in what stands in it: names that a broker repeats.
func TestAnswerToARequestOfTheClientsIsNotTakenForOneToAQuestion(t *testing.T) {
	for name, produce := range map[string]func(corr int32) []byte{
		"two-faced": twoFaced,
		"answered for no reason": func(corr int32) []byte {
			req := kmsg.NewPtrProduceRequest()
			req.Version, req.Acks = 9, 0
			return frameOf(corr, req)
		},
	} {
		t.Run(name, func(t *testing.T) {
			granted := false
			f := startProxy(t, forging(t, &granted))
			w := f.dial()
			w.ask(1, heartbeat("first")) // the first question is whether the client is accepted
			w.send(append(produce(math.MinInt32+1), frameOf(3, heartbeat("read"))...))
			w.expectClosed()
			eventually(t, "the connection's end", func() bool { return len(f.closings()) == 1 }) // whatever was served before has ended
			if granted {
				t.Error("the client has granted itself READ")
			}
		})
	}
}

// forging is an upstream that answers a Produce with what a client has made of
// names, and a proxy that asks for READ.
func forging(t *testing.T, granted *bool) setup {
	addr := scripted(t, func(_ int, frame []byte) []byte {
		resp := &kmsg.MetadataResponse{Version: metadataVersion, Brokers: make([]kmsg.MetadataResponseBroker, 1)}
		topic := kmsg.NewMetadataResponseTopic()
		topic.Topic, topic.AuthorizedOperations = kmsg.StringPtr("secret"), 0
		if binary.BigEndian.Uint16(frame) == uint16(produceKey) {
			topic.AuthorizedOperations = 1 << opRead
		}
		resp.Topics = append(resp.Topics, topic)
		return resp.AppendTo(append(frame[4:8:8], 0))
	})
	cluster := &fakeCluster{ready: make(chan struct{})}
	close(cluster.ready)
	return setup{addrs: []string{addr}, cluster: cluster, apis: []serve.API{echoHeartbeat(func(ctx context.Context, r *serve.Request) error {
		if r.Body.(*kmsg.ShareGroupHeartbeatRequest).MemberID != "read" {
			return nil
		}
		allowed, err := r.Conn.Auth.Topics(ctx, opRead, []string{"secret"})
		*granted = allowed["secret"]
		return err
	})}}
}
