package sharestate

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"os"
	"reflect"
	"strings"
	"testing"
)

var goldenSettings = Settings{DeliveryLimit: 5, LockDurationMs: 30_000, MaxRecordLocks: 2000, RenewEnabled: true}

// backoffSettings are goldenSettings with the release backoff on.
var backoffSettings = func() Settings {
	set := goldenSettings
	set.ReleaseBackoffMs, set.ReleaseBackoffMaxMs = 1000, 60_000
	return set
}()

// goldenOps has every kind, with all fields in use.
var goldenOps = []struct {
	name string
	op   Op
}{
	{"fence", Fence{}},
	{"start", Start{Offset: 1_000_000, LeaderEpoch: 7}},
	{"acquire", Acquire{Member: "member-1", Session: SessionNonce{1_700_000_000_000_000, 0xdeadbeefcafe}, From: 1_000_003,
		Batches: []OffsetRange{{1_000_000, 1_000_009}, {1_000_010, 1_000_010}, {1_000_020, 1_000_520}},
		Aborted: []OffsetRange{{1_000_010, 1_000_010}}, MaxRecords: 500, BatchSize: 100, Mode: RecordLimit, Settings: goldenSettings}},
	{"acquire-empty", Acquire{Settings: Settings{DeadLetters: true}}},
	{"acknowledge", Acknowledge{Member: "member-1", LeaderEpoch: 3, Settings: goldenSettings, Batches: []AckBatch{
		{1_000_000, 1_000_009, []AckType{AckAccept}}, {1_000_020, 1_000_024, []AckType{AckGap, AckAccept, AckRelease, AckReject, AckRenew}}}}},
	{"acknowledge-nonsense", Acknowledge{Member: "", LeaderEpoch: -1, Batches: []AckBatch{{5, 3, nil}, {-1, 1 << 62, []AckType{-1, 9}}}}},
	{"release", Release{"member-1", SessionNonce{1_700_000_000_000_001, 1}, goldenSettings}},
	{"release-replica", ReleaseReplica{0xffffffffffffffff, goldenSettings}},
	{"expire", Expire{goldenSettings}},
	{"log-start", AdvanceLogStart{2_000_000, goldenSettings}},
	{"expire-backoff", Expire{backoffSettings}},
	{"reset", Reset{-1, 1_700_000_000_000_002}},
	{"claim-archiving", ClaimArchiving{42, 1_700_000_000_000_002, 100, 10_000, goldenSettings}},
	{"leader-change", LeaderChange{7, 9, 1_000_003}},
	{"acquire-under", AcquireUnder{9, Acquire{Member: "member-1", Session: SessionNonce{1_700_000_000_000_000, 1}, From: 1_000_003,
		Batches: []OffsetRange{{1_000_000, 1_000_009}}, Aborted: []OffsetRange{{1_000_000, 1_000_009}}, MaxRecords: 500, BatchSize: 100, Settings: goldenSettings}}},
	{"log-start-under", LogStartUnder{9, AdvanceLogStart{2_000_000, goldenSettings}}},
	{"archiving-done", ArchivingDone{1_700_000_000_000_002, []OffsetRange{{10, 19}, {30, 30}}, goldenSettings}},
}

// TestOpEncodingsAreFrozen compares with testdata/golden.txt. Logs in Redis hold
// these bytes: a line there may be added, never changed.
func TestOpEncodingsAreFrozen(t *testing.T) {
	golden := readGolden(t)
	for _, g := range goldenOps {
		t.Run(g.name, func(t *testing.T) {
			want, ok := golden[g.name]
			got := EncodeOp(nil, g.op)
			if !ok || !bytes.Equal(got, want) {
				t.Fatalf("encodes to\n%s %x\nwant %x", g.name, got, want)
			}
			back, err := decodeOp(want)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(back, g.op) {
				t.Fatalf("decodes to %+v, want %+v", back, g.op)
			}
		})
	}
}

// TestHistoryIsFrozen folds one op of each kind and compares results and snapshot
// with testdata/golden.txt: another fold of an old log must come to the same state.
func TestHistoryIsFrozen(t *testing.T) {
	golden := readGolden(t)
	set := goldenSettings
	set.DeadLetters = true
	p := NewPartition(1, -1)
	var all []byte
	for i, op := range []Op{
		Start{0, 1},
		Acquire{Member: "a", Session: SessionNonce{1, 1}, Batches: []OffsetRange{{0, 9}, {10, 19}, {20, 29}},
			Aborted: []OffsetRange{{10, 19}}, MaxRecords: 500, BatchSize: 10, Settings: set},
		Acknowledge{Member: "a", LeaderEpoch: 2, Settings: set, Batches: []AckBatch{{0, 4, []AckType{1, 0, 2, 3, 4}}}},
		Acquire{Member: "b", Session: SessionNonce{2, 2}, From: 2, Batches: []OffsetRange{{0, 9}, {40, 49}},
			MaxRecords: 3, Mode: RecordLimit, Settings: set},
		Release{"b", SessionNonce{2, 2}, set},
		ClaimArchiving{9, 1, 10, 1000, set},
		ArchivingDone{1, []OffsetRange{{0, 3}}, set},
		ReleaseReplica{7, set},
		Acquire{Member: "b", Session: SessionNonce{3, 2}, From: 2, Batches: []OffsetRange{{0, 9}, {40, 49}},
			MaxRecords: 4, Mode: RecordLimit, Settings: set},
		Acknowledge{Member: "b", LeaderEpoch: 2, Settings: set, Batches: []AckBatch{{2, 2, []AckType{3}}}},
		ClaimArchiving{9, 1, 10, 1000, set},
		AdvanceLogStart{1, set},
		Fence{},
		Expire{set},
		Reset{5, 1},
	} {
		var err error
		if all, _, err = p.Apply(all, EncodeOp(nil, op), int64(1_000_000*(i+1))); err != nil {
			t.Fatal(err)
		}
		all = append(all, '|')
	}
	if !bytes.Equal(all, golden["history-results"]) {
		t.Errorf("results\nhistory-results %x", all)
	}
	snapshot := p.AppendSnapshot(nil)
	if !bytes.Equal(snapshot, golden["history-snapshot"]) {
		t.Errorf("snapshot\nhistory-snapshot %x", snapshot)
	}
	q := NewPartition(0, -1)
	if err := q.Restore(golden["history-snapshot"]); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(q.Ranges(), p.Ranges()) {
		t.Errorf("restores to %v, want %v", q.Ranges(), p.Ranges())
	}
}

// TestBackoffHistoryIsFrozen is the same for records that rest, whole batches and parts.
func TestBackoffHistoryIsFrozen(t *testing.T) {
	golden := readGolden(t)
	p := NewPartition(1, 0)
	var all []byte
	for i, op := range []Op{
		Acquire{Member: "a", Session: SessionNonce{1, 1}, Batches: []OffsetRange{{0, 9}, {10, 19}, {20, 29}},
			MaxRecords: 500, BatchSize: 10, Settings: backoffSettings},
		Acknowledge{Member: "a", LeaderEpoch: 2, Settings: backoffSettings, Batches: []AckBatch{{0, 4, []AckType{2}}, {10, 19, []AckType{2}}}},
		Acquire{Member: "b", Session: SessionNonce{2, 2}, From: 30, Batches: []OffsetRange{{30, 39}},
			MaxRecords: 500, BatchSize: 10, Settings: backoffSettings},
		Acquire{Member: "b", Session: SessionNonce{2, 2}, Batches: []OffsetRange{{0, 9}, {10, 19}},
			MaxRecords: 3, Settings: backoffSettings},
		Release{"b", SessionNonce{2, 2}, backoffSettings},
	} {
		var err error
		if all, _, err = p.Apply(all, EncodeOp(nil, op), int64(900_000*(i+1))); err != nil {
			t.Fatal(err)
		}
		all = append(all, '|')
	}
	if !bytes.Equal(all, golden["backoff-results"]) {
		t.Errorf("results\nbackoff-results %x", all)
	}
	snapshot := p.AppendSnapshot(nil)
	if !bytes.Equal(snapshot, golden["backoff-snapshot"]) {
		t.Errorf("snapshot\nbackoff-snapshot %x", snapshot)
	}
	q := NewPartition(0, -1)
	if err := q.Restore(golden["backoff-snapshot"]); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(q.Ranges(), p.Ranges()) {
		t.Errorf("restores to %v, want %v", q.Ranges(), p.Ranges())
	}
}

// TestLeaderChangeHistoryIsFrozen is the same for a log that is cut by an unclean
// election, inside a batch and inside what is finished.
func TestLeaderChangeHistoryIsFrozen(t *testing.T) {
	golden := readGolden(t)
	p := NewPartition(1, -1)
	var all []byte
	for i, op := range []Op{
		Start{0, 3},
		LeaderChange{-1, 3, -1},
		Acquire{Member: "a", Session: SessionNonce{1, 1}, Batches: []OffsetRange{{0, 9}, {10, 19}, {20, 29}},
			MaxRecords: 500, BatchSize: 10, Settings: goldenSettings},
		Acknowledge{Member: "a", LeaderEpoch: 3, Settings: goldenSettings, Batches: []AckBatch{{2, 4, []AckType{1}}, {20, 29, []AckType{1}}}},
		LeaderChange{2, 4, 0},
		LeaderChange{3, 5, 7},
		LeaderChange{3, 5, 0},
		LeaderChange{5, 6, 7},
	} {
		var err error
		if all, _, err = p.Apply(all, EncodeOp(nil, op), int64(1_000_000*(i+1))); err != nil {
			t.Fatal(err)
		}
		all = append(all, '|')
	}
	if !bytes.Equal(all, golden["leader-change-results"]) {
		t.Errorf("results\nleader-change-results %x", all)
	}
	snapshot := p.AppendSnapshot(nil)
	if !bytes.Equal(snapshot, golden["leader-change-snapshot"]) {
		t.Errorf("snapshot\nleader-change-snapshot %x", snapshot)
	}
	q := NewPartition(0, -1)
	if err := q.Restore(golden["leader-change-snapshot"]); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(q.Ranges(), p.Ranges()) || q.LogEpoch() != 6 {
		t.Errorf("restores to %v under %d, want %v", q.Ranges(), q.LogEpoch(), p.Ranges())
	}
}

func readGolden(t *testing.T) map[string][]byte {
	t.Helper()
	f, err := os.Open("testdata/golden.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	golden := map[string][]byte{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, value, ok := strings.Cut(lines.Text(), " ")
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		if golden[name], err = hex.DecodeString(value); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	return golden
}
