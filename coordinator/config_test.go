package coordinator

import (
	"slices"
	"strings"
	"testing"
)

func TestDurationsAreReadAsJavaDoes(t *testing.T) {
	for text, want := range map[string]int64{
		"PT0S": 0, "PT1S": 1000, "PT0.5S": 500, "PT1.0019S": 1001, "P1D": 86400000, "P1DT2H3M4.5S": 93784500,
		"pt15m": 900000, "PT36H": 129600000, "-PT1H": -3600000, "PT-6H+3M": -21420000, "P-1D": -86400000,
		"PT-0.5S": -500, "PT,5S": -1, "PT1,25S": 1250, "PT1.S": 1000, "-P-1D": 86400000,
	} {
		got, err := parseDuration(text)
		if want == -1 {
			if err == nil {
				t.Errorf("%s is read as %d", text, got)
			}
			continue
		}
		if err != nil || got != want {
			t.Errorf("%s is read as %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "P", "PT", "P1DT", "1D", "P1H", "PT1D", "P1Y", "P1W", "PT1.0000000001S", "PT1H1D", "P99999999999999999999D", "PT.5S", " PT1S"} {
		if got, err := parseDuration(text); err == nil {
			t.Errorf("%q is read as %d", text, got)
		}
	}
}

func TestOffsetResetPolicies(t *testing.T) {
	for value, want := range map[string]OffsetReset{
		"latest": {Kind: ResetLatest}, "earliest": {Kind: ResetEarliest}, "by_duration:PT1H": {Kind: ResetByDuration, AgeMs: 3600000},
	} {
		if got, err := parseOffsetReset(value); err != nil || got != want {
			t.Errorf("%s is read as %+v, %v", value, got, err)
		}
	}
	for _, value := range []string{"", "Latest", "by_duration", "by_duration:", "by_duration:1h", "by_duration:PT-1S"} {
		if got, err := parseOffsetReset(value); err == nil {
			t.Errorf("%q is read as %+v", value, got)
		}
	}
}

func TestEffectiveConfigIsClampedToBrokerBounds(t *testing.T) {
	b := DefaultBrokerConfig()
	g := NewGroup()
	g.setConfig(SetConfig{Set: []Setting{
		{keyLockDuration, "1000"}, {keyDeliveryLimit, "99"}, {keyMaxRecordLocks, "200"}, {keyHeartbeatInterval, "20000"},
		{keyAutoOffsetReset, "by_duration:PT1M"}, {keyIsolationLevel, readCommitted}, {keyRenewEnable, "false"},
		{keyDeadLetterTopic, "dlq.t"}, {keyDeadLetterCopy, "true"}, {keyAssignmentInterval, "-5"},
		{keyReleaseBackoff, "250"}, {keyReleaseBackoffMax, "9999999"},
	}})
	want := Config{
		SessionTimeoutMs: 45000, HeartbeatIntervalMs: 15000, LockDurationMs: 15000, DeliveryLimit: 10, MaxRecordLocks: 200,
		AutoOffsetReset: OffsetReset{Kind: ResetByDuration, AgeMs: 60000}, ReadCommitted: true,
		DeadLetterTopic: "dlq.t", DeadLetterCopyRecord: true, ReleaseBackoffMs: 250, ReleaseBackoffMaxMs: 3600000,
	}
	if got := g.Effective(&b); got != want {
		t.Fatalf("%+v, want %+v", got, want)
	}
	defaults := Config{
		SessionTimeoutMs: 45000, HeartbeatIntervalMs: 5000, LockDurationMs: 30000, DeliveryLimit: 5, MaxRecordLocks: 2000,
		RenewEnabled: true, AssignmentIntervalMs: 1000, ReleaseBackoffMaxMs: 60000,
	}
	if got := (*Group)(nil).Effective(&b); got != defaults {
		t.Fatalf("%+v, want %+v", got, defaults)
	}
}

func TestTimeoutMustExceedInterval(t *testing.T) {
	b := DefaultBrokerConfig()
	for key, value := range map[string]string{
		"group.share.min.session.timeout.ms": "1000", "group.share.max.heartbeat.interval.ms": "60000",
	} {
		if err := b.Set(key, value); err != nil {
			t.Fatal(err)
		}
	}
	ops := []ConfigOp{{Key: keySessionTimeout, Value: ref("10000")}, {Key: keyHeartbeatInterval, Value: ref("10000")}}
	_, err := planConfig(&b, NewGroup(), ops, false)
	wantError(t, err, ErrInvalidConfig, "share.session.timeout.ms must be greater than share.heartbeat.interval.ms")
	// What is set already counts too, unless it is replaced.
	g := NewGroup()
	g.setConfig(SetConfig{Set: []Setting{{keyHeartbeatInterval, "10000"}}})
	_, err = planConfig(&b, g, ops[:1], false)
	wantError(t, err, ErrInvalidConfig, "")
	if _, err := planConfig(&b, g, ops[:1], true); err != nil {
		t.Fatal(err)
	}
}

func TestReleaseBackoffIsBoundedByItsMaximum(t *testing.T) {
	b := DefaultBrokerConfig()
	g := NewGroup()
	_, err := planConfig(&b, g, []ConfigOp{{Key: keyReleaseBackoff, Value: ref("60001")}}, false)
	wantError(t, err, ErrInvalidConfig, "share.release.backoff.max.ms must not be less than share.release.backoff.ms")
	_, err = planConfig(&b, g, []ConfigOp{{Key: keyReleaseBackoff, Value: ref("3600001")}}, false)
	wantError(t, err, ErrInvalidConfig, "share.release.backoff.ms must be in the range 0 to 3600000 inclusive.")
	both := []ConfigOp{{Key: keyReleaseBackoff, Value: ref("60001")}, {Key: keyReleaseBackoffMax, Value: ref("60001")}}
	plan, err := planConfig(&b, g, both, false)
	if err != nil {
		t.Fatal(err)
	}
	g.setConfig(plan)
	_, err = planConfig(&b, g, []ConfigOp{{Key: keyReleaseBackoffMax, Op: ConfigDelete}}, false)
	wantError(t, err, ErrInvalidConfig, "")
	if c := g.Effective(&b); c.ReleaseBackoffMs != 60001 || c.ReleaseBackoffMaxMs != 60001 {
		t.Fatalf("%+v", c)
	}
}

func TestReleaseBackoffIsDescribedAsKsharesOwn(t *testing.T) {
	b := DefaultBrokerConfig()
	entries := describeConfigs(&b, NewGroup(), []string{keyReleaseBackoff, keyReleaseBackoffMax})
	if len(entries) != 2 {
		t.Fatalf("entries %+v", entries)
	}
	for i, want := range []ConfigSynonym{{keyReleaseBackoffMax, "60000", SourceDefault}, {keyReleaseBackoff, "0", SourceDefault}} {
		e := entries[i]
		if e.Name != want.Name || e.Value != want.Value || e.Type != TypeInt || e.Source != SourceDefault ||
			!slices.Equal(e.Synonyms, []ConfigSynonym{want}) || !strings.Contains(e.Documentation, "kshare's own") {
			t.Errorf("entry %+v", e)
		}
	}
}

func TestInternalConfigIsListedOnceSet(t *testing.T) {
	b := DefaultBrokerConfig()
	g := NewGroup()
	if entries := describeConfigs(&b, g, []string{keyAssignorOffload}); len(entries) != 0 {
		t.Fatalf("listed %+v", entries)
	}
	g.setConfig(SetConfig{Set: []Setting{{keyAssignorOffload, "false"}}})
	if entries := describeConfigs(&b, g, nil); len(entries) != len(groupKeys) {
		t.Fatalf("%d of %d keys", len(entries), len(groupKeys))
	}
}

func TestDefaultsOfBrokerThatWereSetShowTheirSource(t *testing.T) {
	b := DefaultBrokerConfig()
	if err := b.Set("group.share.delivery.count.limit", "7"); err != nil {
		t.Fatal(err)
	}
	e := describeConfigs(&b, NewGroup(), []string{keyDeliveryLimit})[0]
	want := []ConfigSynonym{
		{"group.share.delivery.count.limit", "7", SourceStaticBroker},
		{"group.share.delivery.count.limit", "5", SourceDefault},
	}
	if e.Value != "7" || e.Source != SourceStaticBroker || !slices.Equal(e.Synonyms, want) {
		t.Fatalf("entry %+v", e)
	}
}

func TestBrokerDefaultsAreKafkas(t *testing.T) {
	b := DefaultBrokerConfig()
	if err := b.Validate(); err != nil {
		t.Fatal(err)
	}
	if b.settings() != shippedSettings {
		t.Fatalf("%+v are not what ops count as defaults", b.settings())
	}
	all := make(map[string]string)
	for _, s := range b.All() {
		all[s.Key] = s.Value
	}
	for key, want := range map[string]string{
		"group.share.session.timeout.ms": "45000", "group.share.max.session.timeout.ms": "60000", "group.share.heartbeat.interval.ms": "5000",
		"group.share.max.size": "200", "group.share.assignors": "simple", "group.share.delivery.count.limit": "5",
		"group.share.record.lock.duration.ms": "30000", "group.share.partition.max.record.locks": "2000",
		"group.share.max.share.sessions": "2000", "errors.deadletterqueue.topic.name.prefix": "dlq.",
		"errors.deadletterqueue.auto.create.topics.enable": "false", "share.coordinator.state.topic.prune.interval.ms": "300000",
		"share.coordinator.append.linger.ms": "-1", "group.share.max.assignment.interval.ms": "15000",
	} {
		if all[key] != want {
			t.Errorf("%s is %q, want %q", key, all[key], want)
		}
	}
}

func TestBrokerSettingsThatAreRefused(t *testing.T) {
	for _, c := range []struct{ key, value, want string }{
		{"group.share.nothing", "1", "unknown broker setting group.share.nothing"},
		{"group.share.enable", "true", "always on"},
		{"group.share.record.lock.partition.limit", "200", "group.share.partition.max.record.locks"},
		{"group.share.assignors", "uniform", "simple"},
		{"group.share.max.size", "1001", "from 1 to 1000"},
		{"group.share.max.size", "x", "from 1 to 1000"},
		{"group.share.delivery.count.limit", "1", "from 2 to 10"},
		{"errors.deadletterqueue.auto.create.topics.enable", "maybe", "true or false"},
	} {
		b := DefaultBrokerConfig()
		if err := b.Set(c.key, c.value); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s=%s: %v", c.key, c.value, err)
		}
	}
}

func TestBrokerSettingsOutsideTheirPairAreNamed(t *testing.T) {
	for _, p := range brokerPairs {
		b := DefaultBrokerConfig()
		*brokerNumber(p.value).number(&b) = *brokerNumber(p.high).number(&b) + 1
		err := b.Validate()
		if err == nil || !strings.Contains(err.Error(), p.value) || !strings.Contains(err.Error(), p.low) || !strings.Contains(err.Error(), p.high) {
			t.Errorf("%s above its maximum: %v", p.value, err)
		}
		b = DefaultBrokerConfig()
		*brokerNumber(p.value).number(&b) = *brokerNumber(p.low).number(&b) - 1
		if b.Validate() == nil {
			t.Errorf("%s below its minimum is valid", p.value)
		}
	}
	b := DefaultBrokerConfig()
	b.MaxShareSessions = 100
	if err := b.Validate(); err == nil || !strings.Contains(err.Error(), "group.share.max.size") {
		t.Errorf("fewer sessions than members: %v", err)
	}
}

func TestCopiesOfBrokerConfigAreIndependent(t *testing.T) {
	a := DefaultBrokerConfig()
	if err := a.Set("group.share.max.size", "5"); err != nil {
		t.Fatal(err)
	}
	b := a
	_ = a.Set("group.share.delivery.count.limit", "6")
	_ = b.Set("group.share.record.lock.duration.ms", "20000")
	if slices.Contains(b.set, "group.share.delivery.count.limit") || a.LockDurationMs != 30000 {
		t.Fatalf("a %v, b %v", a.set, b.set)
	}
}

func TestDeadLetterTopicsGoByTheBrokersPrefix(t *testing.T) {
	for _, c := range []struct {
		prefix, topic string
		ok            bool
	}{
		{"dlq.", "", true}, {"dlq.", "dlq.orders", true}, {"dlq.", " dlq.orders ", true}, {"dlq.", "orders", false},
		{"dlq.", "__dlq.orders", false}, {"", "orders", true}, {"", "__orders", false}, {"dead-", "dead-orders", true}, {"dead-", "dlq.orders", false},
	} {
		b := DefaultBrokerConfig()
		if err := b.Set("errors.deadletterqueue.topic.name.prefix", c.prefix); err != nil {
			t.Fatal(err)
		}
		if err := b.CheckDeadLetterTopic(c.topic); (err == nil) != c.ok {
			t.Errorf("%q under the prefix %q: %v", c.topic, c.prefix, err)
		}
	}
}

// A broker takes the deletion of any name, so that what a newer version has set can be taken away.
func TestConfigOfAnyNameCanBeDeleted(t *testing.T) {
	b := DefaultBrokerConfig()
	g := NewGroup()
	g.setConfig(SetConfig{Set: []Setting{{keyDeliveryLimit, "4"}, {"share.of.tomorrow", "1"}}})
	ops := []ConfigOp{{Key: "share.nothing", Op: ConfigDelete}, {Key: "share.of.tomorrow", Op: ConfigDelete}, {Key: keyLockDuration, Op: ConfigDelete}}
	plan, err := planConfig(&b, g, ops, false)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"share.of.tomorrow", keyLockDuration}; !slices.Equal(plan.Delete, want) {
		t.Fatalf("deletes %v, want %v", plan.Delete, want)
	}
	if g.setConfig(plan); !slices.Equal(g.configs, []Setting{{keyDeliveryLimit, "4"}}) {
		t.Fatalf("left %v", g.configs)
	}
	_, err = planConfig(&b, g, []ConfigOp{{Key: "share.nothing", Op: ConfigAppend, Value: ref("1")}}, false)
	wantError(t, err, ErrInvalidConfig, "Can't APPEND to key share.nothing because its type is not LIST.")
}

func TestNoKeysAreAllKeys(t *testing.T) {
	b := DefaultBrokerConfig()
	all := describeConfigs(&b, NewGroup(), nil)
	if got := describeConfigs(&b, NewGroup(), []string{}); len(got) != len(all) {
		t.Fatalf("%d keys, want %d", len(got), len(all))
	}
}
