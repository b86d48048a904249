//go:build e2e

package conformance

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// open sends an opening ShareFetch and returns its top-level error.
func (m *member) open(req *kmsg.ShareFetchRequest) (code int16, took time.Duration) {
	m.w.Helper()
	began := time.Now()
	resp := ask[*kmsg.ShareFetchResponse](m.w, m.c, req)
	if resp.ErrorCode == 0 {
		m.advance(req.ShareSessionEpoch)
	}
	return resp.ErrorCode, time.Since(began)
}

// maxRecords is a change for takeBy.
func maxRecords(n int32) func(*kmsg.ShareFetchRequest) {
	return func(req *kmsg.ShareFetchRequest) { req.MaxRecords = n }
}

func TestCheck063_GroupAndMemberMustBeNamed(t *testing.T) {
	w := start(t, setup{})
	name := func(s string) *string { return &s }
	for what, who := range map[string]struct{ group, member *string }{
		"no group":       {nil, name("m")},
		"no member":      {name(w.group), nil},
		"empty member":   {name(w.group), name("")},
		"long member":    {name(w.group), name(strings.Repeat("m", 37))},
		"long in UTF-16": {name(w.group), name(strings.Repeat("\U0001f600", 19))},
	} {
		w.within(what, func(w *world) {
			m := w.member()
			fetch, ack := m.fetching(w.p(0)), m.acknowledging()
			fetch.GroupID, fetch.MemberID = who.group, who.member
			ack.GroupID, ack.MemberID, ack.ShareSessionEpoch = who.group, who.member, 1
			m.refused(fetch, kerr.InvalidRequest)
			m.refused(ack, kerr.InvalidRequest)
		})
	}
	for _, id := range []string{strings.Repeat("m", 36), strings.Repeat("\u00e9", 36), strings.Repeat("\U0001f600", 18)} {
		m := w.member()
		m.id = id
		m.fetch(w.p(0))
	}
}

func TestCheck064_GroupWithoutReadIsDenied(t *testing.T) {
	w := start(t, setup{guarded: true})
	w.produce(w.p(0), 1)
	m := w.member()
	m.takes("0-0x1", w.p(0))
	w.deny(kmsg.ACLResourceTypeGroup, w.group)
	w.until("denial", 20*time.Second, func() error {
		req := m.fetching()
		req.MaxWaitMillis = 0
		resp := ask[*kmsg.ShareFetchResponse](w, m.c, req)
		if resp.ErrorCode == 0 {
			m.advance(req.ShareSessionEpoch)
			return errors.New("still allowed")
		}
		return nil
	})
	m.refused(m.fetching(), kerr.GroupAuthorizationFailed)
	ack := m.acknowledging()
	carry(ack, w.p(0), accept(0, 0))
	m.refused(ack, kerr.GroupAuthorizationFailed)
	// Before the member id is looked at, after the group id is.
	ack.MemberID = nil
	m.refused(ack, kerr.GroupAuthorizationFailed)
}

func TestCheck065_TopicWithoutReadIsDeniedAlone(t *testing.T) {
	w := start(t, setup{guarded: true})
	denied := w.createTopic(w.main.name+"-denied", 1, nil)
	w.join(w.group, w.main, denied)
	w.deny(kmsg.ACLResourceTypeTopic, denied.name)
	m := w.member()
	m.fetch(denied.at(0), w.p(0))
	for range 3 {
		w.until("records of one topic beside the denial of the other", 20*time.Second, func() error {
			w.produce(w.p(0), 1)
			f := m.fetch()
			part := f.part(denied.at(0))
			if part == nil || part.ErrorCode == 0 || f.acquired(w.p(0)) == "" {
				return fmt.Errorf("%+v", f.Topics)
			}
			w.code("denied", part.ErrorCode, kerr.TopicAuthorizationFailed)
			noHint(f, denied.at(0))
			return nil
		})
	}
}

// noHint checks CurrentLeader beside an error that has none to give.
func noHint(f fetched, p tp) {
	f.w.Helper()
	want := allowed().noHint
	if l := f.part(p).CurrentLeader; l.LeaderID != want || l.LeaderEpoch != want {
		f.w.Fatalf("current leader %+v, want %d for both", l, want)
	}
	if n := len(f.NodeEndpoints); n != 0 {
		f.w.Fatalf("%d node endpoints", n)
	}
}

func TestCheck066_UnknownTopicsAndPartitions(t *testing.T) {
	w := start(t, setup{})
	gone := w.createTopic(w.main.name+"-gone", 1, nil)
	w.join(w.group, w.main, gone)
	m := w.member()
	unknown := topic{"unknown", [16]byte{1, 2, 3}}
	f := m.fetch(w.p(0), w.p(99), unknown.at(0), gone.at(0))
	w.code("known", f.failure(w.p(0)), nil)
	w.code("unknown topic id", f.failure(unknown.at(0)), kerr.UnknownTopicID)
	w.code("partition 99", f.failure(w.p(99)), kerr.UnknownTopicOrPartition)
	w.code("topic to be deleted", f.failure(gone.at(0)), nil)
	noHint(f, w.p(99))
	noHint(f, unknown.at(0))
	w.deleteTopic(gone)
	w.until("deletion to be seen", 20*time.Second, func() error {
		f = m.fetch()
		if part := f.part(gone.at(0)); part == nil || part.ErrorCode != kerr.UnknownTopicOrPartition.Code {
			return fmt.Errorf("%+v", part)
		}
		return nil
	})
	f = m.fetch()
	w.code("deleted", f.failure(gone.at(0)), kerr.UnknownTopicOrPartition)
	w.code("unknown topic id", f.failure(unknown.at(0)), kerr.UnknownTopicID)
	w.code("partition 99", f.failure(w.p(99)), kerr.UnknownTopicOrPartition)
}

func TestCheck067_RecordsAreNeverNull(t *testing.T) {
	w := start(t, setup{})
	m := w.member()
	f := m.fetch(w.p(0), w.p(99))
	for _, p := range []tp{w.p(0), w.p(99)} {
		if r := f.part(p).Records; r == nil || len(r) != 0 {
			t.Fatalf("records of partition %d: %v (null: %v)", p.p, r, r == nil)
		}
	}
	if l := f.part(w.p(0)).CurrentLeader; l.LeaderID != 0 || l.LeaderEpoch != 0 {
		t.Fatalf("current leader %+v without an error", l)
	}
	w.produce(w.p(0), 1)
	m.takes("0-0x1", w.p(0))
	req := m.fetching()
	carry(req, w.p(0), accept(0, 0))
	req.MaxWaitMillis = 0
	f = m.do(req)
	if r := f.part(w.p(0)).Records; r == nil {
		t.Fatal("records of a partition with an acknowledgement alone are null")
	}
	if l := f.part(w.p(0)).CurrentLeader; l.LeaderID != 0 || l.LeaderEpoch != 0 {
		t.Fatalf("current leader %+v beside an acknowledgement", l)
	}
	ack := m.acknowledging()
	carry(ack, w.p(0), accept(0, 0))
	if l := m.doAck(ack).Topics[0].Partitions[0].CurrentLeader; l.LeaderID != 0 || l.LeaderEpoch != 0 {
		t.Fatalf("current leader %+v in ShareAcknowledge", l)
	}
}

func TestCheck068_UnchangedEmptyPartitionsAreOmitted(t *testing.T) {
	w := start(t, setup{partitions: 3})
	m, other := w.member(), w.member()
	w.is("epoch 0", m.fetch(w.p(0), w.p(1)).listed(w.main), "0/0 0/1")
	w.is("epoch 1", m.fetch().listed(w.main), "")
	w.is("one added", m.fetch(w.p(2)).listed(w.main), "0/2")
	w.is("one named again", m.fetch(w.p(1)).listed(w.main), "")
	w.is("after", m.fetch().listed(w.main), "")
	w.produce(w.p(1), 1)
	m.takes("0-0x1", w.p(1))
	w.is("after records", m.fetch().listed(w.main), "")
	// Where nothing is to be fetched nothing is listed; what was added meanwhile is by the first fetch, except at epoch 0.
	nothing := func(parts ...tp) string {
		req := other.fetching(parts...)
		req.MaxRecords = 0
		return other.do(req).listed(w.main)
	}
	w.is("epoch 0, nothing to fetch", nothing(w.p(0)), "")
	w.is("first fetch", other.fetch().listed(w.main), "")
	w.is("one added, nothing to fetch", nothing(w.p(2)), "")
	w.is("first fetch", other.fetch().listed(w.main), "0/2")
	w.is("second fetch", other.fetch().listed(w.main), "")
}

func TestCheck069_ResponsesTellTheLockDuration(t *testing.T) {
	w := start(t, setup{configs: map[string]string{"share.record.lock.duration.ms": "21000"}})
	m := w.member()
	for _, version := range []int16{1, 2} {
		req := m.fetching(w.p(0))
		req.Version, req.MaxWaitMillis = version, 0
		if got := m.do(req).AcquisitionLockTimeoutMillis; got != 21_000 {
			t.Fatalf("ShareFetch v%d: %d", version, got)
		}
	}
	if got := m.doAck(m.acknowledging()).AcquisitionLockTimeoutMillis; got != 21_000 {
		t.Fatalf("ShareAcknowledge: %d", got)
	}
	req := m.fetching()
	req.ShareSessionEpoch = -1
	if got := m.do(req).AcquisitionLockTimeoutMillis; got != 21_000 {
		t.Fatalf("final ShareFetch: %d", got)
	}
}
