package coordinator

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/rs/zerolog"
)

// The points of the conformance checklist that a Service decides.

func ref(s string) *string { return &s }

func TestCheck010_JoinCreatesTheGroup(t *testing.T) {
	r := newTestbed(t, testTopic("t", 2)).replica()
	response := r.mustBeat("m", 0, "t")
	if response.Member != "m" || response.Epoch < 1 || response.IntervalMs != 5000 || !response.HasAssignment {
		t.Fatalf("answer %+v", response)
	}
	if d := r.describe(); d.State != StateStable || d.Assignor != "simple" {
		t.Fatalf("description %+v", d)
	}
}

func TestCheck011_LoneMemberGetsAllPartitions(t *testing.T) {
	r := newTestbed(t, testTopic("t", 3), testTopic("u", 2)).replica()
	if response := r.mustBeat("m", 0, "t", "u"); load(response.Assignment) != 5 {
		t.Fatalf("answer %+v", response)
	}
}

func TestCheck012to015_RequestsThatAreInvalid(t *testing.T) {
	r := newTestbed(t).replica()
	for _, c := range []struct {
		name    string
		request HeartbeatRequest
		message string
	}{
		{"12 no topics", HeartbeatRequest{Group: "g", Member: "m"}, "SubscribedTopicNames must be set in first request."},
		{"12 empty topics", HeartbeatRequest{Group: "g", Member: "m", Topics: []string{}}, "SubscribedTopicNames must be set in first request."},
		{"13 no member", HeartbeatRequest{Group: "g", Topics: []string{"t"}}, "MemberId can't be empty."},
		{"14 no group", HeartbeatRequest{Member: "m", Topics: []string{"t"}}, "GroupId can't be empty."},
		{"14 empty rack", HeartbeatRequest{Group: "g", Member: "m", Topics: []string{"t"}, Rack: ref("")}, "RackId can't be empty."},
		{"13 blank member", HeartbeatRequest{Group: "g", Member: " \t", Topics: []string{"t"}}, "MemberId can't be empty."},
		{"14 blank group", HeartbeatRequest{Group: " ", Member: "m", Topics: []string{"t"}}, "GroupId can't be empty."},
		{"14 blank rack", HeartbeatRequest{Group: "g", Member: "m", Topics: []string{"t"}, Rack: ref("\n ")}, "RackId can't be empty."},
		{"15 epoch", HeartbeatRequest{Group: "g", Member: "m", Epoch: -2}, "MemberEpoch is invalid."},
		{"the first of many", HeartbeatRequest{Epoch: -2, Rack: ref("")}, "MemberId can't be empty."},
	} {
		_, err := r.Heartbeat(context.Background(), c.request)
		t.Run(c.name, func(t *testing.T) { wantError(t, err, ErrInvalidRequest, c.message) })
	}
	if len(r.List(t.Context())) != 0 {
		t.Fatal("a group was created")
	}
	if _, err := r.Heartbeat(context.Background(), HeartbeatRequest{Group: "g", Member: "m", Topics: []string{"t"}}); err != nil {
		t.Fatalf("rack null: %v", err)
	}
}

func TestCheck016_UnknownGroupIsNamed(t *testing.T) {
	r := newTestbed(t).replica()
	_, err := r.beat("m", 5)
	wantError(t, err, ErrGroupIDNotFound, "Share group g not found.")
	_, err = r.beat("m", -1)
	wantError(t, err, ErrGroupIDNotFound, "Share group g not found.")
}

func TestCheck025_FullGroupRefusesOnlyNewMembers(t *testing.T) {
	b := newTestbed(t, testTopic("t", 1))
	b.set("group.share.max.size", "2")
	r := b.replica()
	epoch := r.mustBeat("m", 0, "t").Epoch
	r.mustBeat("n", 0, "t")
	_, err := r.beat("o", 0, "t")
	wantError(t, err, ErrGroupMaxSize, "")
	r.mustBeat("m", epoch)
}

func TestCheck028_TopicThatIsCreatedLater(t *testing.T) {
	b := newTestbed(t)
	r := b.replica()
	if response := r.mustBeat("m", 0, "t"); len(response.Assignment) != 0 || !response.HasAssignment {
		t.Fatalf("answer %+v", response)
	}
	b.up.set(testTopic("t", 2))
	epoch := int32(1)
	eventually(t, "its partitions are assigned", func() bool {
		response := r.mustBeat("m", epoch)
		epoch = response.Epoch
		return load(response.Assignment) == 2
	})
}

func TestCheck029_PartitionsThatAreAdded(t *testing.T) {
	b := newTestbed(t, testTopic("t", 1))
	r := b.replica()
	epoch := r.mustBeat("m", 0, "t").Epoch
	b.up.set(testTopic("t", 3))
	eventually(t, "they are assigned", func() bool {
		response := r.mustBeat("m", epoch)
		epoch = response.Epoch
		return load(response.Assignment) == 3
	})
	for p, want := range []int64{-1, 0, 0} {
		start, ok, err := r.Initialized(context.Background(), "g", testID("t"), int32(p))
		if err != nil || !ok || start.StartOffset != want {
			t.Fatalf("partition %d: %+v, %v, %v", p, start, ok, err)
		}
	}
}

func TestCheck030_TopicThatIsDeleted(t *testing.T) {
	b := newTestbed(t, testTopic("t", 1), testTopic("u", 1))
	r := b.replica()
	epoch := r.mustBeat("m", 0, "t", "u").Epoch
	b.up.remove("t")
	eventually(t, "it is taken away", func() bool {
		response := r.mustBeat("m", epoch)
		epoch = response.Epoch
		return response.HasAssignment && formatAssignment(response.Assignment) == "u[0]"
	})
	all, err := r.InitializedPartitions(context.Background(), "g")
	if err != nil || formatAssignment(all) != "u[0]" {
		t.Fatalf("initialized %v, %v", all, err)
	}
}

func TestCheck042_IDThatUpstreamUses(t *testing.T) {
	b := newTestbed(t, testTopic("t", 1))
	b.up.inUse = func(string) (bool, error) { return true, nil }
	r := b.replica()
	for _, epoch := range []int32{0, 5, -1} {
		_, err := r.beat("m", epoch, "t")
		wantError(t, err, ErrGroupIDNotFound, "Group g is not a share group.")
	}
	if len(r.List(t.Context())) != 0 {
		t.Fatal("a group was created")
	}
}

// Clients are told to try again, so that the log alone tells an operator what is wrong, and not for each of them.
func TestUpstreamThatDoesNotTellOfGroupsIsLogged(t *testing.T) {
	b := newTestbed(t, testTopic("t", 1))
	b.up.inUse = func(string) (bool, error) { return false, errors.New("DESCRIBE is needed") }
	var log bytes.Buffer
	b.log = zerolog.New(zerolog.SyncWriter(&log))
	r := b.replica()
	for range 5 {
		if _, err := r.beat("m", 0, "t"); !errors.Is(err, ErrUnavailable) {
			t.Fatal(err)
		}
	}
	r.stop()
	if n := strings.Count(log.String(), "DESCRIBE is needed"); n < 1 || n > 2 {
		t.Fatalf("%d lines:\n%s", n, log.String())
	}
}

func TestCheck043and117_DescribeWhatIsNotThere(t *testing.T) {
	b := newTestbed(t)
	r := b.replica()
	ctx := context.Background()
	_, err := r.Describe(ctx, "g")
	wantError(t, err, ErrGroupIDNotFound, "Group g not found.")
	_, err = r.Describe(ctx, "")
	wantError(t, err, ErrInvalidGroupID, "")
	b.up.inUse = func(string) (bool, error) { return true, nil }
	_, err = r.Describe(ctx, "g")
	wantError(t, err, ErrGroupIDNotFound, "Group g is not a share group.")
}

func TestCheck044_GroupTypeIsNoConfig(t *testing.T) {
	r := newTestbed(t).replica()
	err := r.AlterConfigs(context.Background(), "g", []ConfigOp{{Key: "group.type", Value: ref("share")}}, false)
	wantError(t, err, ErrInvalidConfig, "Unknown group config name: group.type")
}

func TestCheck127_ConfigsOfAnUntouchedGroup(t *testing.T) {
	b := newTestbed(t)
	b.broker = DefaultBrokerConfig()
	r := b.replica()
	ctx := context.Background()
	entries, err := r.DescribeConfigs(ctx, "g", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Source != SourceDefault || e.Documentation == "" || e.Name == keyAssignorOffload {
			t.Fatalf("entry %+v", e)
		}
	}
	if len(entries) != 13 { // Kafka's 11 and kshare's own
		t.Fatalf("%d entries", len(entries))
	}
	if err := r.AlterConfigs(ctx, "g", []ConfigOp{{Key: keyLockDuration, Value: ref(" 15000 ")}}, false); err != nil {
		t.Fatal(err)
	}
	entry := func() ConfigEntry {
		entries, err := r.DescribeConfigs(ctx, "g", []string{keyLockDuration, "no.such.key"})
		if err != nil || len(entries) != 1 {
			t.Fatal(entries, err)
		}
		return entries[0]
	}
	broker := ConfigSynonym{Name: "group.share.record.lock.duration.ms", Value: "30000", Source: SourceDefault}
	e := entry()
	if e.Value != "15000" || e.Source != SourceGroup || e.Type != TypeInt || len(e.Synonyms) != 2 ||
		e.Synonyms[0] != (ConfigSynonym{Name: keyLockDuration, Value: "15000", Source: SourceGroup}) || e.Synonyms[1] != broker {
		t.Fatalf("entry %+v", e)
	}
	if err := r.AlterConfigs(ctx, "g", []ConfigOp{{Key: keyLockDuration, Op: ConfigDelete}}, false); err != nil {
		t.Fatal(err)
	}
	if e := entry(); e.Value != "30000" || e.Source != SourceDefault || len(e.Synonyms) != 1 || e.Synonyms[0] != broker {
		t.Fatalf("entry %+v", e)
	}
}

func TestCheck128_ConfigsThatAreRefused(t *testing.T) {
	r := newTestbed(t).replica()
	ctx := context.Background()
	set := func(key, value string) []ConfigOp { return []ConfigOp{{Key: key, Value: &value}} }
	for _, c := range []struct {
		name    string
		ops     []ConfigOp
		kind    error
		message string
	}{
		{"unknown", set("share.nothing", "1"), ErrInvalidConfig, "Unknown group config name: share.nothing"},
		{"another protocol's", set("consumer.session.timeout.ms", "45000"), ErrInvalidConfig, "Unknown group config name: consumer.session.timeout.ms"},
		{"below", set(keyLockDuration, "14999"), ErrInvalidConfig, "share.record.lock.duration.ms must be in the range 15000 to 60000 inclusive."},
		{"below what any broker takes", set(keyLockDuration, "999"), ErrInvalidConfig, "Invalid value 999 for configuration share.record.lock.duration.ms: Value must be at least 1000"},
		{"above", set(keyDeliveryLimit, "11"), ErrInvalidConfig, "share.delivery.count.limit must be in the range 2 to 10 inclusive."},
		{"no number", set(keyMaxRecordLocks, "many"), ErrInvalidConfig, "Invalid value many for configuration share.partition.max.record.locks: Not a number of type INT"},
		{"beyond 32 bits", set(keyMaxRecordLocks, "4294967396"), ErrInvalidConfig, "Invalid value 4294967396 for configuration share.partition.max.record.locks: Not a number of type INT"},
		{"no boolean", set(keyRenewEnable, "yes"), ErrInvalidConfig, "Invalid value yes for configuration share.renew.acknowledge.enable: Expected value to be either true or false"},
		{"no policy", set(keyAutoOffsetReset, "none"), ErrInvalidConfig, "Invalid value none for configuration share.auto.offset.reset: Invalid value `none` for configuration share.auto.offset.reset. " +
			"The value must be either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'."},
		{"negative duration", set(keyAutoOffsetReset, "by_duration:-PT1H"), ErrInvalidConfig, ""},
		{"no isolation level", set(keyIsolationLevel, "serializable"), ErrInvalidConfig, "Invalid value serializable for configuration share.isolation.level: String must be one of: read_committed, read_uncommitted"},
		{"internal topic", set(keyDeadLetterTopic, "__dlq"), ErrInvalidConfig, "errors.deadletterqueue.topic.name: DLQ topic name must not start with '__'"},
		{"dead letter topic without the prefix", set(keyDeadLetterTopic, "orders"), ErrInvalidConfig,
			"Invalid value orders for configuration errors.deadletterqueue.topic.name: a dead letter topic must start with dlq., which errors.deadletterqueue.topic.name.prefix says"},
		{"null", []ConfigOp{{Key: keyLockDuration}}, ErrInvalidRequest, "Null value not supported for : share.record.lock.duration.ms"},
		{"twice", append(set(keyLockDuration, "15000"), ConfigOp{Key: keyLockDuration, Op: ConfigDelete}), ErrInvalidRequest, "Error due to duplicate config keys"},
		{"append", []ConfigOp{{Key: keyLockDuration, Op: ConfigAppend, Value: ref("1")}}, ErrInvalidConfig, "Can't APPEND to key share.record.lock.duration.ms because its type is not LIST."},
		{"subtract", []ConfigOp{{Key: keyLockDuration, Op: ConfigSubtract, Value: ref("1")}}, ErrInvalidConfig, "Can't SUBTRACT to key share.record.lock.duration.ms because its type is not LIST."},
		{"one bad of two", append(set(keyLockDuration, "15000"), set(keyDeliveryLimit, "1")...), ErrInvalidConfig, ""},
	} {
		err := r.AlterConfigs(ctx, "g", c.ops, false)
		t.Run(c.name, func(t *testing.T) { wantError(t, err, c.kind, c.message) })
	}
	wantError(t, r.AlterConfigs(ctx, "", nil, false), ErrInvalidRequest, "Default group resources are not allowed.")
	_, err := r.DescribeConfigs(ctx, "", nil)
	wantError(t, err, ErrInvalidRequest, "Group name must not be empty")
	if err := r.AlterConfigs(ctx, "g", set(keyLockDuration, "15000"), true); err != nil {
		t.Fatal(err)
	}
	if c, err := r.Config(ctx, "g"); err != nil || c.LockDurationMs != 30000 {
		t.Fatalf("validation or refusal changed something: %+v, %v", c, err)
	}
	if len(r.ConfiguredGroups()) != 0 {
		t.Fatal("configs are listed")
	}
}

func TestCheck130_GroupsWithConfigsAreListed(t *testing.T) {
	r := newTestbed(t).replica()
	if err := r.AlterConfigs(context.Background(), "never/used {group}", []ConfigOp{{Key: keyDeliveryLimit, Value: ref("3")}}, false); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(r.ConfiguredGroups(), ","); got != "never/used {group}" {
		t.Fatalf("listed %q", got)
	}
}
