package coordinator

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// BrokerConfig holds the broker-level share settings under Kafka's names (Set), with the defaults and
// bounds of Kafka 4.4. Make one with DefaultBrokerConfig. It may be copied.
type BrokerConfig struct {
	// Times are in milliseconds.
	SessionTimeoutMs, MinSessionTimeoutMs, MaxSessionTimeoutMs             int32
	HeartbeatIntervalMs, MinHeartbeatIntervalMs, MaxHeartbeatIntervalMs    int32
	AssignmentIntervalMs, MinAssignmentIntervalMs, MaxAssignmentIntervalMs int32
	LockDurationMs, MinLockDurationMs, MaxLockDurationMs                   int32
	DeliveryLimit, MinDeliveryLimit, MaxDeliveryLimit                      int32
	MaxRecordLocks, MinMaxRecordLocks, MaxMaxRecordLocks                   int32
	// MaxSize is how many members a group may have.
	MaxSize int32
	// MaxShareSessions is how many share sessions a node may have.
	MaxShareSessions int32
	// Assignors is always `simple`.
	Assignors            string
	AssignorOffload      bool
	DeadLetterAutoCreate bool
	DeadLetterPrefix     string

	inert [len(inertKeys)]int32
	// set lists the keys that Set was called with; replaced, never changed in place.
	set []string
}

// BrokerSetting is one broker-level setting, as `kshare check` prints it.
type BrokerSetting struct{ Key, Value string }

// brokerKey says how one key is kept, printed and bounded. Exactly one of number, text, flag is set.
type brokerKey struct {
	name      string
	number    func(*BrokerConfig) *int32
	text      func(*BrokerConfig) *string
	flag      func(*BrokerConfig) *bool
	def       string
	low, high int64
}

const maxInt32 = 1<<31 - 1

// inertKeys belong to parts of a broker that kshare has not: its state is in Redis, and share-partitions are initialized
// with the heartbeat that needs them. They are accepted, so that a broker's file can be taken over, and change nothing.
var inertKeys = [...]struct {
	name           string
	def, low, high int64
}{
	{"group.share.initialize.retry.interval.ms", 30000, 1, maxInt32},
	{"share.fetch.purgatory.purge.interval.requests", 1000, 1, maxInt32},
	{"share.coordinator.threads", 1, 1, maxInt32},
	{"share.coordinator.append.linger.ms", -1, -1, maxInt32},
	{"share.coordinator.cached.buffer.max.bytes", 1048588, 512 * 1024, maxInt32},
	{"share.coordinator.cold.partition.snapshot.interval.ms", 300000, 1, maxInt32},
	{"share.coordinator.load.buffer.size", 5242880, 1, maxInt32},
	{"share.coordinator.snapshot.update.records.per.snapshot", 500, 0, 500},
	{"share.coordinator.write.timeout.ms", 5000, 1, maxInt32},
	{"share.coordinator.state.topic.num.partitions", 50, 1, maxInt32},
	{"share.coordinator.state.topic.replication.factor", 3, 1, 32767},
	{"share.coordinator.state.topic.min.isr", 2, 1, 32767},
	{"share.coordinator.state.topic.segment.bytes", 104857600, 1, maxInt32},
	{"share.coordinator.state.topic.compression.codec", 0, 0, 4},
	{"share.coordinator.state.topic.prune.interval.ms", 300000, 1, maxInt32},
}

// goneKeys existed in early releases only.
var goneKeys = map[string]string{
	"group.share.enable":                      "share groups are always on",
	"group.share.max.groups":                  "it is gone since Kafka 4.1; the number of groups is not limited",
	"group.share.record.lock.partition.limit": "use group.share.partition.max.record.locks",
	"group.share.persister.class.name":        "kshare keeps its state in Redis",
	"group.share.dlq.manager.class.name":      "kshare has one way to write dead letters",
	"share.fetch.max.fetch.records":           "it is gone since Kafka 4.1; clients set MaxRecords",
}

var brokerKeys = func() []brokerKey {
	number := func(name string, def, low, high int64, field func(*BrokerConfig) *int32) brokerKey {
		return brokerKey{name: name, def: strconv.FormatInt(def, 10), low: low, high: high, number: field}
	}
	keys := []brokerKey{
		number("group.share.session.timeout.ms", 45000, 1, maxInt32, func(b *BrokerConfig) *int32 { return &b.SessionTimeoutMs }),
		number("group.share.min.session.timeout.ms", 45000, 1, maxInt32, func(b *BrokerConfig) *int32 { return &b.MinSessionTimeoutMs }),
		number("group.share.max.session.timeout.ms", 60000, 1, maxInt32, func(b *BrokerConfig) *int32 { return &b.MaxSessionTimeoutMs }),
		number("group.share.heartbeat.interval.ms", 5000, 1, maxInt32, func(b *BrokerConfig) *int32 { return &b.HeartbeatIntervalMs }),
		number("group.share.min.heartbeat.interval.ms", 5000, 1, maxInt32, func(b *BrokerConfig) *int32 { return &b.MinHeartbeatIntervalMs }),
		number("group.share.max.heartbeat.interval.ms", 15000, 1, maxInt32, func(b *BrokerConfig) *int32 { return &b.MaxHeartbeatIntervalMs }),
		number("group.share.max.size", 200, 1, 1000, func(b *BrokerConfig) *int32 { return &b.MaxSize }),
		{name: "group.share.assignors", def: AssignorName, text: func(b *BrokerConfig) *string { return &b.Assignors }},
		number("group.share.assignment.interval.ms", 1000, 0, maxInt32, func(b *BrokerConfig) *int32 { return &b.AssignmentIntervalMs }),
		number("group.share.min.assignment.interval.ms", 0, 0, maxInt32, func(b *BrokerConfig) *int32 { return &b.MinAssignmentIntervalMs }),
		number("group.share.max.assignment.interval.ms", 15000, 0, maxInt32, func(b *BrokerConfig) *int32 { return &b.MaxAssignmentIntervalMs }),
		{name: "group.share.assignor.offload.enable", def: "true", flag: func(b *BrokerConfig) *bool { return &b.AssignorOffload }},
		number("group.share.delivery.count.limit", 5, 2, 10, func(b *BrokerConfig) *int32 { return &b.DeliveryLimit }),
		number("group.share.min.delivery.count.limit", 2, 2, 5, func(b *BrokerConfig) *int32 { return &b.MinDeliveryLimit }),
		number("group.share.max.delivery.count.limit", 10, 5, 25, func(b *BrokerConfig) *int32 { return &b.MaxDeliveryLimit }),
		number("group.share.record.lock.duration.ms", 30000, 1000, 3600000, func(b *BrokerConfig) *int32 { return &b.LockDurationMs }),
		number("group.share.min.record.lock.duration.ms", 15000, 1000, 30000, func(b *BrokerConfig) *int32 { return &b.MinLockDurationMs }),
		number("group.share.max.record.lock.duration.ms", 60000, 30000, 3600000, func(b *BrokerConfig) *int32 { return &b.MaxLockDurationMs }),
		number("group.share.partition.max.record.locks", 2000, 100, 10000, func(b *BrokerConfig) *int32 { return &b.MaxRecordLocks }),
		number("group.share.min.partition.max.record.locks", 100, 100, 10000, func(b *BrokerConfig) *int32 { return &b.MinMaxRecordLocks }),
		number("group.share.max.partition.max.record.locks", 4000, 100, 10000, func(b *BrokerConfig) *int32 { return &b.MaxMaxRecordLocks }),
		number("group.share.max.share.sessions", 2000, 1, maxInt32, func(b *BrokerConfig) *int32 { return &b.MaxShareSessions }),
		{name: "errors.deadletterqueue.auto.create.topics.enable", def: "false", flag: func(b *BrokerConfig) *bool { return &b.DeadLetterAutoCreate }},
		{name: "errors.deadletterqueue.topic.name.prefix", def: "dlq.", text: func(b *BrokerConfig) *string { return &b.DeadLetterPrefix }},
	}
	for i, k := range inertKeys {
		keys = append(keys, number(k.name, k.def, k.low, k.high, func(b *BrokerConfig) *int32 { return &b.inert[i] }))
	}
	return keys
}()

// brokerPairs are the settings that lie between two others.
var brokerPairs = [...]struct{ value, low, high string }{
	{"group.share.session.timeout.ms", "group.share.min.session.timeout.ms", "group.share.max.session.timeout.ms"},
	{"group.share.heartbeat.interval.ms", "group.share.min.heartbeat.interval.ms", "group.share.max.heartbeat.interval.ms"},
	{"group.share.assignment.interval.ms", "group.share.min.assignment.interval.ms", "group.share.max.assignment.interval.ms"},
	{"group.share.delivery.count.limit", "group.share.min.delivery.count.limit", "group.share.max.delivery.count.limit"},
	{"group.share.record.lock.duration.ms", "group.share.min.record.lock.duration.ms", "group.share.max.record.lock.duration.ms"},
	{"group.share.partition.max.record.locks", "group.share.min.partition.max.record.locks", "group.share.max.partition.max.record.locks"},
}

// DefaultBrokerConfig returns Kafka's defaults.
func DefaultBrokerConfig() BrokerConfig {
	var b BrokerConfig
	for _, k := range brokerKeys {
		if err := k.parse(&b, k.def); err != nil {
			panic(err) // The table itself is wrong.
		}
	}
	return b
}

// Set changes one setting. The error names the key and says what is possible; pairs are checked by
// Validate, when all keys are set.
func (b *BrokerConfig) Set(key, value string) error {
	i := slices.IndexFunc(brokerKeys, func(k brokerKey) bool { return k.name == key })
	if i < 0 {
		if why, ok := goneKeys[key]; ok {
			return fmt.Errorf("broker setting %s does not apply: %s", key, why)
		}
		return fmt.Errorf("unknown broker setting %s: only Kafka's share group settings (group.share.*, share.*, errors.deadletterqueue.*) are known", key)
	}
	if err := brokerKeys[i].parse(b, strings.TrimSpace(value)); err != nil {
		return err
	}
	if !slices.Contains(b.set, key) {
		b.set = append(slices.Clip(b.set), key)
	}
	return nil
}

func (k brokerKey) parse(b *BrokerConfig, value string) error {
	switch {
	case k.text != nil:
		if k.name == "group.share.assignors" && value != AssignorName {
			return fmt.Errorf("broker setting %s=%s: the only assignor is %s", k.name, value, AssignorName)
		}
		*k.text(b) = value
	case k.flag != nil:
		v, err := parseBool(value)
		if err != nil {
			return fmt.Errorf("broker setting %s=%s: must be true or false", k.name, value)
		}
		*k.flag(b) = v
	default:
		v, err := strconv.ParseInt(value, 10, 32)
		if err != nil || v < k.low || v > k.high {
			return fmt.Errorf("broker setting %s=%s: must be an integer from %d to %d", k.name, value, k.low, k.high)
		}
		*k.number(b) = int32(v)
	}
	return nil
}

func (k brokerKey) value(b *BrokerConfig) string {
	switch {
	case k.text != nil:
		return *k.text(b)
	case k.flag != nil:
		return strconv.FormatBool(*k.flag(b))
	}
	return strconv.FormatInt(int64(*k.number(b)), 10)
}

// Validate checks the settings against each other. The error names both ends of the pair.
func (b *BrokerConfig) Validate() error {
	for _, p := range brokerPairs {
		value, low, high := *brokerNumber(p.value).number(b), *brokerNumber(p.low).number(b), *brokerNumber(p.high).number(b)
		if low > high {
			return fmt.Errorf("broker settings %s=%d and %s=%d: the minimum is above the maximum", p.low, low, p.high, high)
		}
		if value < low || value > high {
			return fmt.Errorf("broker setting %s=%d must lie between %s=%d and %s=%d", p.value, value, p.low, low, p.high, high)
		}
	}
	if b.SessionTimeoutMs <= b.HeartbeatIntervalMs {
		return fmt.Errorf("broker setting group.share.session.timeout.ms=%d must be greater than group.share.heartbeat.interval.ms=%d", b.SessionTimeoutMs, b.HeartbeatIntervalMs)
	}
	if b.MaxShareSessions < b.MaxSize {
		return fmt.Errorf("broker setting group.share.max.share.sessions=%d must not be less than group.share.max.size=%d", b.MaxShareSessions, b.MaxSize)
	}
	return nil
}

// All lists every setting in force.
func (b *BrokerConfig) All() []BrokerSetting {
	all := make([]BrokerSetting, 0, len(brokerKeys))
	for _, k := range brokerKeys {
		all = append(all, BrokerSetting{Key: k.name, Value: k.value(b)})
	}
	return all
}

func brokerNumber(name string) brokerKey {
	return brokerKeys[slices.IndexFunc(brokerKeys, func(k brokerKey) bool { return k.name == name })]
}

// settings are the ones that transitions of a group depend on.
func (b *BrokerConfig) settings() Settings {
	return Settings{
		SessionTimeout: b.SessionTimeoutMs, SessionTimeoutMin: b.MinSessionTimeoutMs, SessionTimeoutMax: b.MaxSessionTimeoutMs,
		AssignmentInterval: b.AssignmentIntervalMs, AssignmentIntervalMin: b.MinAssignmentIntervalMs, AssignmentIntervalMax: b.MaxAssignmentIntervalMs,
		MaxSize: b.MaxSize,
	}
}
