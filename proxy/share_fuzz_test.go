package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"math"
	"reflect"
	runtimemetrics "runtime/metrics"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// FuzzShareRequest reads ShareFetch and ShareAcknowledge frames as a connection does, from the size to the decoded request. The
// fuzzer makes what stands behind the correlation id: client id, tags and body.
func FuzzShareRequest(f *testing.F) {
	for _, req := range shareRequests() {
		for version := int16(1); version <= 2; version++ {
			req.SetVersion(version)
			for _, client := range []*string{&testClientID, nil} {
				frame := appendRequest(nil, 1, client, req)
				if _, err := readRequest(frame); err != nil {
					f.Fatal(err)
				}
				rest := frame[sizeLen+headerLen:]
				f.Add(req.Key() == shareAcknowledgeKey, version == 2, rest, uint16(len(rest)/2))
				f.Add(req.Key() == shareAcknowledgeKey, version == 2, rest[:len(rest)-3], uint16(1))
			}
		}
	}
	// A tag in the header, and lengths that promise more than there is.
	f.Add(false, true, []byte("\xff\xff\x01\x07\x02ab\x02g\x02m\x00\x00\x00\x01"), uint16(0))
	f.Add(false, false, append([]byte("\xff\xff\x00\x02g\x02m"), "\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x01\xff\xff\xff\xff\x0f"...), uint16(0))
	f.Add(true, true, []byte("\x7f\xffa"), uint16(0))
	f.Add(true, true, []byte("\xff\xff\x00\x02g\x02m\x00\x00\x00\x01\x00\xff\xff\xff\xff\x07"), uint16(0))
	f.Fuzz(func(t *testing.T, acknowledge, two bool, rest []byte, cut uint16) {
		key, version := shareFetchKey, int16(1)
		if acknowledge {
			key = shareAcknowledgeKey
		}
		if two {
			version = 2
		}
		frame := make([]byte, sizeLen, sizeLen+headerLen+len(rest))
		frame = append(frame, 0, byte(key), 0, byte(version), 0, 0, 0, 1)
		frame = putSize(append(frame, rest...), 0)
		if n, limit := allocations(frame), uint64(64*len(frame)+allocationSlack); n > limit {
			t.Errorf("%d bytes are allocated for a frame of %d", n, len(frame))
		}
		req, err := readRequest(frame)
		if err != nil {
			var c *closeError
			if !errors.As(err, &c) || c.reason != CloseMalformed {
				t.Errorf("%v does not close the connection as malformed", err)
			}
			return
		}
		if req.Key() != key || req.GetVersion() != version {
			t.Fatalf("key %d version %d", req.Key(), req.GetVersion())
		}
		// It is what its own encoding says, and no part of that is a request.
		whole := appendRequest(nil, 1, &testClientID, req)
		again, err := readRequest(whole)
		if err != nil || !reflect.DeepEqual(again, req) {
			t.Fatalf("%+v\nis read again as\n%+v, %v", req, again, err)
		}
		body := len(req.AppendTo(nil))
		part := putSize(whole[:len(whole)-body+int(cut)%body], 0)
		if got, err := readRequest(part); err == nil {
			t.Fatalf("%d of %d bytes of the body are a request as well: %+v", int(cut)%body, body, got)
		}
	})
}

const shareAcknowledgeKey int16 = 79

// readRequest reads and decodes the one frame that b is.
func readRequest(b []byte) (kmsg.Request, error) {
	in := bufio.NewReaderSize(bytes.NewReader(b), readerSize)
	h, err := readHeader(in, maxDecoded)
	if err != nil {
		return nil, err
	}
	frame, err := readFrame(in, h.size)
	if err != nil {
		return nil, err
	}
	r, err := parseRequest(h, frame, true)
	if err != nil {
		return nil, err
	}
	return r.decode()
}

// allocationSlack is what reading takes whatever the frame: the connection's buffer, mostly.
const allocationSlack = 64 << 10

// allocations is how many bytes are allocated for reading a frame: the least of some tries, for other goroutines allocate
// as well.
func allocations(frame []byte) uint64 {
	least := uint64(math.MaxUint64)
	for range 5 {
		before := allocated()
		_, _ = readRequest(frame)
		if least = min(least, allocated()-before); least <= allocationSlack {
			break
		}
	}
	return least
}

// allocated is how many bytes the process has ever allocated.
func allocated() uint64 {
	sample := []runtimemetrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	runtimemetrics.Read(sample)
	return sample[0].Value.Uint64()
}

// shareRequests have something in every field.
func shareRequests() []kmsg.Request {
	group, member := "g", "m"
	fetch := kmsg.NewPtrShareFetchRequest()
	fetch.GroupID, fetch.MemberID, fetch.ShareSessionEpoch = &group, &member, 7
	fetch.MaxWaitMillis, fetch.MinBytes, fetch.MaxBytes, fetch.MaxRecords, fetch.BatchSize = 500, 1, 50<<20, 500, 100
	fetch.ShareAcquireMode, fetch.IsRenewAck = 1, true
	fetch.Topics = []kmsg.ShareFetchRequestTopic{{TopicID: [16]byte{1, 2}, Partitions: []kmsg.ShareFetchRequestTopicPartition{
		{Partition: 0}, {Partition: 3, AcknowledgementBatches: []kmsg.ShareFetchRequestTopicPartitionAcknowledgementBatch{
			{FirstOffset: 0, LastOffset: 1 << 40, AcknowledgeTypes: []int8{1}}, {FirstOffset: 9, LastOffset: 11, AcknowledgeTypes: []int8{0, 2, -1}}}}}}}
	fetch.ForgottenTopicsData = []kmsg.ShareFetchRequestForgottenTopicsData{{TopicID: [16]byte{3}, Partitions: []int32{0, -1}}}
	acknowledge := kmsg.NewPtrShareAcknowledgeRequest()
	acknowledge.GroupID, acknowledge.MemberID, acknowledge.ShareSessionEpoch, acknowledge.IsRenewAck = &group, &member, -1, true
	acknowledge.Topics = []kmsg.ShareAcknowledgeRequestTopic{{TopicID: [16]byte{1, 2}, Partitions: []kmsg.ShareAcknowledgeRequestTopicPartition{
		{Partition: 5, AcknowledgementBatches: []kmsg.ShareAcknowledgeRequestTopicPartitionAcknowledgementBatch{
			{FirstOffset: 4, LastOffset: 4, AcknowledgeTypes: []int8{4}}}}, {Partition: 6}}}}
	tagged := kmsg.NewPtrShareAcknowledgeRequest()
	tagged.UnknownTags.Set(200, []byte("later"))
	return []kmsg.Request{fetch, acknowledge, kmsg.NewPtrShareFetchRequest(), tagged}
}
