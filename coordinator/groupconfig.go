package coordinator

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The configs of a share group (resource type GROUP).
const (
	keySessionTimeout     = "share.session.timeout.ms"
	keyHeartbeatInterval  = "share.heartbeat.interval.ms"
	keyLockDuration       = "share.record.lock.duration.ms"
	keyAutoOffsetReset    = "share.auto.offset.reset"
	keyIsolationLevel     = "share.isolation.level"
	keyDeliveryLimit      = "share.delivery.count.limit"
	keyMaxRecordLocks     = "share.partition.max.record.locks"
	keyReleaseBackoff     = "share.release.backoff.ms"     // kshare's own
	keyReleaseBackoffMax  = "share.release.backoff.max.ms" // kshare's own
	keyRenewEnable        = "share.renew.acknowledge.enable"
	keyAssignmentInterval = "share.assignment.interval.ms"
	keyDeadLetterTopic    = "errors.deadletterqueue.topic.name"
	keyDeadLetterCopy     = "errors.deadletterqueue.copy.record.enable"
	keyAssignorOffload    = "share.assignor.offload.enable"
)

// Of the release backoff, in milliseconds: the default of its maximum, and the highest value of both.
const (
	defaultReleaseBackoffMaxMs = 60_000
	maxReleaseBackoffMs        = 3_600_000
)

// ConfigOp is one operation of IncrementalAlterConfigs on a GROUP resource.
type ConfigOp struct {
	Key string
	Op  ConfigOpKind
	// Value may be nil for ConfigDelete only.
	Value *string
}

// ConfigOpKind is the operation type as IncrementalAlterConfigs numbers it.
type ConfigOpKind int8

// The operation types of IncrementalAlterConfigs. Append and subtract are for lists, and no group config is one.
const (
	ConfigSet      ConfigOpKind = 0
	ConfigDelete   ConfigOpKind = 1
	ConfigAppend   ConfigOpKind = 2
	ConfigSubtract ConfigOpKind = 3
)

// ConfigEntry is one key in the answer to DescribeConfigs.
type ConfigEntry struct {
	Name, Value   string
	Source        int8
	Type          int8
	Synonyms      []ConfigSynonym
	Documentation string
}

// ConfigSynonym is one place that a config's value comes from, the strongest first.
type ConfigSynonym struct {
	Name, Value string
	Source      int8
}

// Config sources and types as DescribeConfigs numbers them.
const (
	SourceStaticBroker int8 = 4
	SourceDefault      int8 = 5
	SourceGroup        int8 = 8

	TypeBoolean int8 = 1
	TypeString  int8 = 2
	TypeInt     int8 = 3
)

// groupKey describes one group config.
type groupKey struct {
	name string
	kind int8
	// broker is the broker setting that gives the default; where empty, def does.
	broker, def string
	// least bounds an integer for good; low and high are the broker's bounds.
	least     int32
	low, high func(*BrokerConfig) int32
	// check tells what is wrong with the value of a text, "" if nothing; nil takes any.
	check func(*BrokerConfig, string) string
	// internal keys are listed only where set.
	internal bool
	doc      string
}

// groupKeys are in the order of their names.
var groupKeys = []groupKey{
	{name: keyDeadLetterCopy, kind: TypeBoolean, def: "false",
		doc: "Whether a dead letter carries the key and value of the record that was given up."},
	{name: keyDeadLetterTopic, kind: TypeString, def: "", check: checkDeadLetterTopic,
		doc: "The topic that records go to when they are rejected or reach the delivery count limit. Empty turns dead letters off."},
	{name: keyAssignmentInterval, kind: TypeInt, broker: "group.share.assignment.interval.ms",
		low:  func(b *BrokerConfig) int32 { return b.MinAssignmentIntervalMs },
		high: func(b *BrokerConfig) int32 { return b.MaxAssignmentIntervalMs },
		doc:  "The shortest time in milliseconds between two computations of the group's assignment."},
	{name: keyAssignorOffload, kind: TypeBoolean, broker: "group.share.assignor.offload.enable", internal: true,
		doc: "Whether the assignment may be computed apart from the heartbeat. kshare always computes it with the heartbeat."},
	{name: keyAutoOffsetReset, kind: TypeString, def: "latest",
		check: checkOffsetReset,
		doc:   "Where consumption of a share-partition without a start offset begins: latest, earliest, or by_duration:<ISO-8601 duration> for the records of the last so-and-so long."},
	{name: keyDeliveryLimit, kind: TypeInt, least: 2, broker: "group.share.delivery.count.limit",
		low:  func(b *BrokerConfig) int32 { return b.MinDeliveryLimit },
		high: func(b *BrokerConfig) int32 { return b.MaxDeliveryLimit },
		doc:  "How often a record is delivered at most before it is given up."},
	{name: keyHeartbeatInterval, kind: TypeInt, least: 1, broker: "group.share.heartbeat.interval.ms",
		low:  func(b *BrokerConfig) int32 { return b.MinHeartbeatIntervalMs },
		high: func(b *BrokerConfig) int32 { return b.MaxHeartbeatIntervalMs },
		doc:  "The time in milliseconds that members are told to leave between heartbeats."},
	{name: keyIsolationLevel, kind: TypeString, def: readUncommitted, check: checkIsolationLevel,
		doc: "Whether records of open and aborted transactions are delivered (read_uncommitted) or not (read_committed)."},
	{name: keyMaxRecordLocks, kind: TypeInt, least: 100, broker: "group.share.partition.max.record.locks",
		low:  func(b *BrokerConfig) int32 { return b.MinMaxRecordLocks },
		high: func(b *BrokerConfig) int32 { return b.MaxMaxRecordLocks },
		doc:  "How many records of a share-partition may be in flight at a time."},
	{name: keyLockDuration, kind: TypeInt, least: 1000, broker: "group.share.record.lock.duration.ms",
		low:  func(b *BrokerConfig) int32 { return b.MinLockDurationMs },
		high: func(b *BrokerConfig) int32 { return b.MaxLockDurationMs },
		doc:  "How long in milliseconds a record is held for the member it was delivered to."},
	{name: keyReleaseBackoffMax, kind: TypeInt, def: strconv.Itoa(defaultReleaseBackoffMaxMs), low: always(0), high: always(maxReleaseBackoffMs),
		doc: "kshare's own, not Kafka's: the longest time in milliseconds that share.release.backoff.ms may grow to. At least as much as that."},
	{name: keyReleaseBackoff, kind: TypeInt, def: "0", low: always(0), high: always(maxReleaseBackoffMs),
		doc: "kshare's own, not Kafka's: how long in milliseconds a record is not offered after its first delivery ended by release, timeout or session close; " +
			"twice as long after each further delivery, up to share.release.backoff.max.ms. Other records go on meanwhile. 0 turns it off."},
	{name: keyRenewEnable, kind: TypeBoolean, def: "true",
		doc: "Whether members may renew their hold on a record."},
	{name: keySessionTimeout, kind: TypeInt, least: 1, broker: "group.share.session.timeout.ms",
		low:  func(b *BrokerConfig) int32 { return b.MinSessionTimeoutMs },
		high: func(b *BrokerConfig) int32 { return b.MaxSessionTimeoutMs },
		doc:  "How long in milliseconds a member may be silent before it is removed from the group."},
}

// always is a bound that no broker setting moves.
func always(v int32) func(*BrokerConfig) int32 { return func(*BrokerConfig) int32 { return v } }

// OwnsConfig reports whether kshare answers for the key of a GROUP resource; other keys that a Kafka
// group has (consumer.*, streams.*) are upstream's.
func OwnsConfig(key string) bool {
	_, ok := findGroupKey(key)
	return ok
}

func findGroupKey(name string) (groupKey, bool) {
	i := slices.IndexFunc(groupKeys, func(k groupKey) bool { return k.name == name })
	if i < 0 {
		return groupKey{}, false
	}
	return groupKeys[i], true
}

// CheckDeadLetterTopic says what keeps dead letters from going to the topic; an empty name turns them off. It holds when
// the config is set and again when a dead letter is written, since the broker's prefix may have changed in between.
//
// A broker asks for one thing more: the topic config errors.deadletterqueue.group.enable, by which a topic's owner lets
// groups write to it. Clusters without share groups refuse that config, so here the prefix alone is the guard: whoever
// sets it reserves these names for dead letters. Upstream's ACLs for the service account come on top.
func (b *BrokerConfig) CheckDeadLetterTopic(name string) error {
	switch name = trim(name); {
	case name == "":
		return nil
	case strings.HasPrefix(name, "__"):
		return errors.New("a dead letter topic must not start with __")
	case !strings.HasPrefix(name, b.DeadLetterPrefix):
		return fmt.Errorf("a dead letter topic must start with %s, which errors.deadletterqueue.topic.name.prefix says", b.DeadLetterPrefix)
	}
	return nil
}

func checkDeadLetterTopic(b *BrokerConfig, value string) string {
	err := b.CheckDeadLetterTopic(value)
	switch {
	case err == nil:
		return ""
	case strings.HasPrefix(value, "__"):
		return keyDeadLetterTopic + ": DLQ topic name must not start with '__'"
	}
	return invalidValue(keyDeadLetterTopic, value, err.Error())
}

func checkIsolationLevel(_ *BrokerConfig, value string) string {
	if value == readCommitted || value == readUncommitted {
		return ""
	}
	return invalidValue(keyIsolationLevel, value, "String must be one of: "+readCommitted+", "+readUncommitted)
}

func checkOffsetReset(_ *BrokerConfig, value string) string {
	if _, err := parseOffsetReset(value); err == nil {
		return ""
	}
	return invalidValue(keyAutoOffsetReset, value, "Invalid value `"+value+"` for configuration "+keyAutoOffsetReset+
		". The value must be either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'.")
}

func invalidValue(key, value, why string) string {
	return "Invalid value " + value + " for configuration " + key + ": " + why
}

func invalidConfig(format string, args ...any) error {
	return &Error{Kind: ErrInvalidConfig, Message: fmt.Sprintf(format, args...)}
}

// parse returns the value as it is kept, or INVALID_CONFIG with Kafka's message.
func (k groupKey) parse(b *BrokerConfig, value string) (string, error) {
	invalid := func(why string) error {
		return invalidConfig("%s", invalidValue(k.name, value, why))
	}
	switch k.kind {
	case TypeBoolean:
		v, err := parseBool(value)
		if err != nil {
			return "", invalid("Expected value to be either true or false")
		}
		return strconv.FormatBool(v), nil
	case TypeInt:
		v, err := parseInt32(value)
		if err != nil {
			return "", invalid("Not a number of type INT")
		}
		if v < k.least {
			return "", invalid(fmt.Sprintf("Value must be at least %d", k.least))
		}
		if low, high := k.low(b), k.high(b); v < low || v > high {
			return "", invalidConfig("%s must be in the range %d to %d inclusive.", k.name, low, high)
		}
		return strconv.FormatInt(int64(v), 10), nil
	}
	value = trim(value)
	if k.check != nil {
		if wrong := k.check(b, value); wrong != "" {
			return "", invalidConfig("%s", wrong)
		}
	}
	return value, nil
}

// planConfig checks operations against the configs that are set now and makes the op of them.
func planConfig(b *BrokerConfig, g *Group, ops []ConfigOp, replace bool) (SetConfig, error) {
	plan := SetConfig{Replace: replace}
	seen := make(map[string]bool, len(ops))
	for _, op := range ops {
		if seen[op.Key] {
			return SetConfig{}, &Error{Kind: ErrInvalidRequest, Message: "Error due to duplicate config keys"}
		}
		seen[op.Key] = true
	}
	for _, op := range ops {
		if op.Value == nil && op.Op != ConfigDelete {
			return SetConfig{}, &Error{Kind: ErrInvalidRequest, Message: "Null value not supported for : " + op.Key}
		}
	}
	for _, op := range ops {
		switch op.Op {
		case ConfigSet:
			k, ok := findGroupKey(op.Key)
			if !ok {
				return SetConfig{}, invalidConfig("Unknown group config name: %s", op.Key)
			}
			value, err := k.parse(b, *op.Value)
			if err != nil {
				return SetConfig{}, err
			}
			plan.Set = append(plan.Set, Setting{Key: op.Key, Value: value})
		case ConfigDelete: // of any name, as a broker does: a newer version may have set what this one does not know
			if _, set := g.config(op.Key); set || OwnsConfig(op.Key) {
				plan.Delete = append(plan.Delete, op.Key)
			}
		case ConfigAppend, ConfigSubtract:
			verb := map[ConfigOpKind]string{ConfigAppend: "APPEND", ConfigSubtract: "SUBTRACT"}[op.Op]
			return SetConfig{}, invalidConfig("Can't %s to key %s because its type is not LIST.", verb, op.Key)
		default:
			return SetConfig{}, &Error{Kind: ErrInvalidRequest, Message: fmt.Sprintf("Unknown operation type %d for %s", op.Op, op.Key)}
		}
	}
	after := &Group{configs: g.configs}
	after.setConfig(plan)
	c := after.Effective(b)
	if c.SessionTimeoutMs <= c.HeartbeatIntervalMs {
		return SetConfig{}, invalidConfig("%s must be greater than %s", keySessionTimeout, keyHeartbeatInterval)
	}
	if c.ReleaseBackoffMaxMs < c.ReleaseBackoffMs {
		return SetConfig{}, invalidConfig("%s must not be less than %s", keyReleaseBackoffMax, keyReleaseBackoff)
	}
	return plan, nil
}

// describeConfigs lists the given keys, or where none is given all that are not internal, as DescribeConfigs shows them.
// Keys that are not known are left out, as a broker does.
func describeConfigs(b *BrokerConfig, g *Group, keys []string) []ConfigEntry {
	var entries []ConfigEntry
	for _, k := range groupKeys {
		_, set := g.config(k.name)
		if len(keys) > 0 && !slices.Contains(keys, k.name) || k.internal && !set {
			continue
		}
		entries = append(entries, k.describe(b, g))
	}
	return entries
}

func (k groupKey) describe(b *BrokerConfig, g *Group) ConfigEntry {
	e := ConfigEntry{Name: k.name, Type: k.kind, Documentation: k.doc}
	if value, ok := g.config(k.name); ok {
		e.Synonyms = append(e.Synonyms, ConfigSynonym{Name: k.name, Value: value, Source: SourceGroup})
	}
	if k.broker == "" {
		e.Synonyms = append(e.Synonyms, ConfigSynonym{Name: k.name, Value: k.def, Source: SourceDefault})
	} else {
		broker := brokerNumber(k.broker)
		if slices.Contains(b.set, k.broker) {
			e.Synonyms = append(e.Synonyms, ConfigSynonym{Name: k.broker, Value: broker.value(b), Source: SourceStaticBroker})
		}
		e.Synonyms = append(e.Synonyms, ConfigSynonym{Name: k.broker, Value: broker.def, Source: SourceDefault})
	}
	e.Value, e.Source = e.Synonyms[0].Value, e.Synonyms[0].Source
	return e
}
