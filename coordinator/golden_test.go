package coordinator

import (
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var updateGolden = flag.Bool("update-golden", false, "write testdata/golden.txt anew, for a new kind or version only")

// TestFormatsAreFrozen compares a log of every kind of op, its results and the snapshot it leads to with bytes that
// were written by the first version. A replica of any later version must read them alike: a changed rule is a new
// kind with a new number.
func TestFormatsAreFrozen(t *testing.T) {
	rack := "r1"
	own := Settings{SessionTimeout: 50000, SessionTimeoutMin: 1, SessionTimeoutMax: 60000, AssignmentInterval: 0, AssignmentIntervalMin: 0, AssignmentIntervalMax: 5, MaxSize: 3}
	ops := []Op{
		Create{},
		SetConfig{Set: []Setting{{keyAutoOffsetReset, "earliest"}, {keyDeliveryLimit, "3"}}},
		SetConfig{Replace: true, Set: []Setting{{keyIsolationLevel, readCommitted}}, Delete: []string{keyDeliveryLimit}},
		TopicMetadata{Topics: []Topic{testTopic("apples", 3), testTopic("pears", 2)}, AsOf: 1_000_000_000},
		Heartbeat{Member: "m", Topics: []string{"pears", "apples"}, Rack: &rack, Client: &Client{"app", "/10.0.0.1"}, Settings: shippedSettings, AsOf: 1_001_000_000},
		Heartbeat{Member: "n", Topics: []string{"apples"}, Settings: own},
		Heartbeat{Member: "m", Epoch: 1, Settings: own},
		Heartbeat{Member: "m", Epoch: 9, Settings: shippedSettings},
		Resume{Settings: shippedSettings},
		TopicMetadata{Topics: []Topic{testTopic("apples", 4)}, Gone: []Topic{testTopic("pears", 2)}},
		Heartbeat{Member: "n", Epoch: 2, Topics: []string{}, Settings: own},
		Heartbeat{Member: "m", Epoch: -1, Settings: shippedSettings},
		Delete{AsOf: 1_002_000_000},
		SetOffsets{Topics: []TopicOffsets{{testTopic("apples", 4), []PartitionOffset{{1, 77}}}}},
		Expire{AsOf: 1_003_000_000},
		Heartbeat{Member: "n", Epoch: -1, Settings: shippedSettings},
		SetOffsets{Topics: []TopicOffsets{{testTopic("apples", 4), []PartitionOffset{{1, 77}, {3, -1}}}}},
		DeleteOffsets{IDs: [][16]byte{testID("plums")}},
		Heartbeat{Member: "o", Topics: []string{"apples"}, Settings: shippedSettings},
	}
	g, now := NewGroup(), int64(1_000_000_000)
	var b strings.Builder
	for _, op := range ops {
		encoded := EncodeOp(nil, op)
		result, wake, err := g.Apply(nil, encoded, now)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%T %x -> %x %v\n", op, encoded, result, wake)
		now += time.Second.Microseconds()
	}
	fmt.Fprintf(&b, "snapshot %x\n", g.AppendSnapshot(nil))
	path := filepath.Join("testdata", "golden.txt")
	if *updateGolden {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := b.String(); got != string(golden) {
		t.Fatalf("formats have changed:\n%s\nwere\n%s", got, golden)
	}
	replay(t, string(golden))
}

// replay folds the golden bytes themselves.
func replay(t *testing.T, golden string) {
	g, now := NewGroup(), int64(1_000_000_000)
	for line := range strings.Lines(golden) {
		f := strings.Fields(line)
		encoded, err := hex.DecodeString(f[1])
		if err != nil {
			t.Fatal(err)
		}
		if f[0] == "snapshot" {
			restored := NewGroup()
			if err := restored.Restore(encoded); err != nil {
				t.Fatal(err)
			}
			if formatGroup(restored, now) != formatGroup(g, now) {
				t.Fatalf("snapshot holds\n%s\nlog leads to\n%s", formatGroup(restored, now), formatGroup(g, now))
			}
			return
		}
		if _, _, err := g.Apply(nil, encoded, now); err != nil {
			t.Fatal(err)
		}
		now += time.Second.Microseconds()
	}
	t.Fatal("no snapshot")
}
