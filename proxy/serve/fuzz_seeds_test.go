package serve

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/upstream"
)

// What fuzzing of the share handlers starts from: requests of the conformance histories, and one of each other kind.

// historyLine is a request of the conformance histories.
var historyLine = regexp.MustCompile(`^m\d (?:fetch max (\d+) size (\d+) mode (\d)|ack renew (true|false))((?: \d+-\d+[garjn]+)*):`)

// historyRequests are the first requests with acknowledgements of the recorded histories.
func historyRequests(f *testing.F, fetches bool) (fields [][]string, acks [][]ack) {
	files, err := filepath.Glob("../../e2e/conformance/testdata/histories/*.txt")
	if err != nil || len(files) == 0 {
		f.Fatalf("no histories: %v", err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			m := historyLine.FindStringSubmatch(line)
			if m == nil || (m[1] != "") != fetches || m[5] == "" {
				continue
			}
			fields, acks = append(fields, m), append(acks, historyAcks(f, m[5]))
			break
		}
	}
	return fields, acks
}

func historyAcks(f *testing.F, text string) (out []ack) {
	for _, s := range strings.Fields(text) {
		types := s[strings.LastIndexAny(s, "0123456789")+1:]
		var a ack
		if _, err := fmt.Sscanf(s, "%d-%d", &a.first, &a.last); err != nil {
			f.Fatalf("%s: %v", s, err)
		}
		for _, t := range types {
			a.types = append(a.types, int8(strings.IndexRune("garjn", t)))
		}
		out = append(out, a)
	}
	return out
}

func number(f *testing.F, s string) int32 {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil {
		f.Fatal(err)
	}
	return int32(n)
}

func fetchSeeds(f *testing.F) (out []*kmsg.ShareFetchRequest) {
	m := &member{group: "g", id: "a"}
	add := func(epoch int32, mods ...mod) {
		req := m.fetchRequest(epoch)
		for _, change := range mods {
			change(req)
		}
		out = append(out, req)
	}
	fields, acks := historyRequests(f, true)
	for i, l := range fields {
		add(1, with(fuzzTopic, 0, acks[i]...), func(r *kmsg.ShareFetchRequest) {
			r.MaxRecords, r.BatchSize, r.ShareAcquireMode = number(f, l[1]), number(f, l[2]), int8(number(f, l[3]))
		})
	}
	unknown := upstream.Topic{ID: [16]byte{9}, Partitions: 1}
	add(1)
	add(0, with(fuzzTopic, 0), with(fuzzTopic, 1), recordLimit(3))
	add(0, with(fuzzTopic, 0, accept(0, 0)))
	add(2)
	add(-1, with(fuzzTopic, 0, accept(0, 3), release(4, 4)), with(fuzzTopic, 1))
	add(1, with(fuzzTopic, 0, accept(0, 12), reject(13, 13)), with(fuzzTopic, 0), with(unknown, 0, accept(0, 0)), with(fuzzTopic, 2, accept(0, 0)))
	add(1, with(fuzzTopic, 0), forget(fuzzTopic, 0, 1), forget(unknown, 0))
	renewal := func(r *kmsg.ShareFetchRequest) {
		r.IsRenewAck, r.MinBytes, r.MaxBytes, r.MaxRecords = true, 0, 0, 0
	}
	add(1, with(fuzzTopic, 0, ack{0, 3, []int8{4, 1, 0, 2}}), renewal)
	add(1, with(fuzzTopic, 0, ack{0, 3, []int8{4}}))
	add(1, with(fuzzTopic, 0, ack{0, 3, []int8{4, 1, 0, 2}}), func(r *kmsg.ShareFetchRequest) { r.IsRenewAck = true })
	add(1, with(fuzzTopic, 0, ack{-1 << 63, 1<<63 - 1, []int8{1}}))
	add(1, with(fuzzTopic, 0, accept(0, 4)), with(fuzzTopic, 0, accept(0, 1), release(3, 4), release(6, 12)))
	add(1, with(fuzzTopic, 0, accept(0, 4), accept(2, 6)))
	add(1, with(fuzzTopic, 0, ack{0, 4, []int8{1, 2}}))
	add(1, func(r *kmsg.ShareFetchRequest) { r.Version = 1 }, with(fuzzTopic, 0, release(0, 12)))
	add(1, func(r *kmsg.ShareFetchRequest) { r.Version = 1 }, with(fuzzTopic, 0, ack{0, 0, []int8{4}}))
	add(1, func(r *kmsg.ShareFetchRequest) { r.GroupID = nil })
	add(1, func(r *kmsg.ShareFetchRequest) { r.ShareAcquireMode = 2 }, with(fuzzTopic, 0, accept(0, 12)))
	return out
}

func acknowledgeSeeds(f *testing.F) (out []*kmsg.ShareAcknowledgeRequest) {
	group, id := "g", "a"
	type named struct {
		topic     byte
		partition int32
		acks      []ack
	}
	add := func(epoch int32, renew bool, parts ...named) *kmsg.ShareAcknowledgeRequest {
		req := kmsg.NewPtrShareAcknowledgeRequest()
		req.Version, req.GroupID, req.MemberID, req.ShareSessionEpoch, req.IsRenewAck = 2, &group, &id, epoch, renew
		for _, n := range parts {
			topic, p := kmsg.NewShareAcknowledgeRequestTopic(), kmsg.NewShareAcknowledgeRequestTopicPartition()
			topic.TopicID, p.Partition = [16]byte{n.topic}, n.partition
			for _, a := range n.acks {
				b := kmsg.NewShareAcknowledgeRequestTopicPartitionAcknowledgementBatch()
				b.FirstOffset, b.LastOffset, b.AcknowledgeTypes = a.first, a.last, a.types
				p.AcknowledgementBatches = append(p.AcknowledgementBatches, b)
			}
			topic.Partitions = append(topic.Partitions, p)
			req.Topics = append(req.Topics, topic)
		}
		out = append(out, req)
		return req
	}
	fields, acks := historyRequests(f, false)
	for i, l := range fields {
		add(1, l[4] == "true", named{1, 0, acks[i]})
	}
	add(1, false)
	add(0, false, named{1, 0, []ack{accept(0, 0)}})
	add(-1, false, named{1, 0, []ack{accept(0, 3), release(4, 4)}}, named{1, 1, nil})
	add(1, false, named{1, 0, []ack{accept(0, 12)}}, named{1, 0, nil}, named{9, 0, []ack{accept(0, 0)}}, named{1, 7, []ack{accept(0, 0)}})
	add(1, true, named{1, 0, []ack{{0, 3, []int8{4, 1, 0, 2}}}})
	add(1, false, named{1, 0, []ack{{0, 3, []int8{4}}}})
	add(1, false, named{1, 0, []ack{{-1 << 63, 1<<63 - 1, []int8{1}}}})
	add(1, false, named{1, 0, []ack{release(0, 12)}}).Version = 1
	add(1, false).MemberID = nil
	return out
}
