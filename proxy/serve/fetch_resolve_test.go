package serve

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestPartitionThatWasJustAddedIsNotUnknown(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 1)
	w.gets(a.open(topic), topic, entry{0, 0, 1}) // the topic is known now, with one partition
	req := kmsg.NewPtrCreatePartitionsRequest()
	more := kmsg.NewCreatePartitionsRequestTopic()
	more.Topic, more.Count = "t", 2
	req.Topics = append(req.Topics, more)
	resp, err := req.RequestWith(w.ctx, w.admin)
	w.must(err)
	if code := resp.Topics[0].ErrorCode; code != 0 {
		t.Fatalf("code %d", code)
	}
	if p, _ := part(a.fetch(with(topic, 1)), topic.ID, 1); p.ErrorCode != codeUnknown {
		t.Errorf("code %d, want that of a share-partition that is not initialized", p.ErrorCode)
	}
	if p, _ := part(a.fetch(with(topic, 2)), topic.ID, 2); p.ErrorCode != codeUnknownTopic {
		t.Errorf("a partition that is not there: code %d", p.ErrorCode)
	}
}

func TestManyUnknownPartitionsOfATopicAreAskedForOnce(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 1)
	w.gets(a.open(topic), topic, entry{0, 0, 1}) // the topic is known now, with one partition
	asked := w.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, TopLevel: true, Observe: true, Count: -1})
	defer asked.Remove()
	var mods []mod
	for p := int32(1); p <= 100; p++ {
		mods = append(mods, with(topic, p))
	}
	resp := a.fetch(mods...)
	if p, _ := part(resp, topic.ID, 100); p.ErrorCode != codeUnknownTopic {
		t.Errorf("a partition that is not there: code %d", p.ErrorCode)
	}
	if n := asked.Hits(); n > 5 {
		t.Errorf("upstream was asked %d times", n)
	}
}
