package coordinator

import (
	"errors"
	"strconv"
	"strings"
)

// OffsetReset is a parsed share.auto.offset.reset.
type OffsetReset struct {
	Kind OffsetResetKind
	// AgeMs is how far back ResetByDuration starts, in milliseconds.
	AgeMs int64
}

// OffsetResetKind is the policy of an OffsetReset.
type OffsetResetKind int8

// The policies of share.auto.offset.reset.
const (
	ResetLatest OffsetResetKind = iota
	ResetEarliest
	ResetByDuration
)

// Config holds the settings of one group as they are in force: the group's own where set, else the
// broker's, within the broker's bounds. Times are in milliseconds.
type Config struct {
	SessionTimeoutMs, HeartbeatIntervalMs int32
	LockDurationMs                        int32
	AutoOffsetReset                       OffsetReset
	// ReadCommitted is share.isolation.level = read_committed.
	ReadCommitted        bool
	DeliveryLimit        int16
	MaxRecordLocks       int32
	RenewEnabled         bool
	AssignmentIntervalMs int32
	// ReleaseBackoffMs is kshare's own: how long a record that came back after its first delivery is not offered, twice as
	// long after each further one up to ReleaseBackoffMaxMs; 0 = off.
	ReleaseBackoffMs, ReleaseBackoffMaxMs int32
	// DeadLetterTopic is empty where dead letters are off.
	DeadLetterTopic      string
	DeadLetterCopyRecord bool
}

// Effective computes the settings in force. g may be nil for a group without configs.
func (g *Group) Effective(b *BrokerConfig) Config {
	if g == nil {
		g = &Group{}
	}
	c := Config{
		SessionTimeoutMs:     g.number(keySessionTimeout, b.SessionTimeoutMs, b.MinSessionTimeoutMs, b.MaxSessionTimeoutMs),
		HeartbeatIntervalMs:  g.number(keyHeartbeatInterval, b.HeartbeatIntervalMs, b.MinHeartbeatIntervalMs, b.MaxHeartbeatIntervalMs),
		LockDurationMs:       g.number(keyLockDuration, b.LockDurationMs, b.MinLockDurationMs, b.MaxLockDurationMs),
		DeliveryLimit:        int16(g.number(keyDeliveryLimit, b.DeliveryLimit, b.MinDeliveryLimit, b.MaxDeliveryLimit)),
		MaxRecordLocks:       g.number(keyMaxRecordLocks, b.MaxRecordLocks, b.MinMaxRecordLocks, b.MaxMaxRecordLocks),
		AssignmentIntervalMs: g.number(keyAssignmentInterval, b.AssignmentIntervalMs, b.MinAssignmentIntervalMs, b.MaxAssignmentIntervalMs),
		ReleaseBackoffMs:     g.number(keyReleaseBackoff, 0, 0, maxReleaseBackoffMs),
		ReleaseBackoffMaxMs:  g.number(keyReleaseBackoffMax, defaultReleaseBackoffMaxMs, 0, maxReleaseBackoffMs),
		RenewEnabled:         g.flag(keyRenewEnable, true),
		DeadLetterCopyRecord: g.flag(keyDeadLetterCopy, false),
	}
	if raw, ok := g.config(keyAutoOffsetReset); ok {
		c.AutoOffsetReset, _ = parseOffsetReset(raw)
	}
	if raw, ok := g.config(keyIsolationLevel); ok {
		c.ReadCommitted = raw == readCommitted
	}
	if raw, ok := g.config(keyDeadLetterTopic); ok {
		c.DeadLetterTopic = trim(raw)
	}
	return c
}

func (g *Group) flag(key string, def bool) bool {
	if raw, ok := g.config(key); ok {
		if v, err := parseBool(raw); err == nil {
			return v
		}
	}
	return def
}

const (
	readCommitted   = "read_committed"
	readUncommitted = "read_uncommitted"
	byDuration      = "by_duration:"
)

var errOffsetReset = errors.New("must be latest, earliest or by_duration:<ISO-8601 duration>")

func parseOffsetReset(value string) (OffsetReset, error) {
	switch value {
	case "latest":
		return OffsetReset{Kind: ResetLatest}, nil
	case "earliest":
		return OffsetReset{Kind: ResetEarliest}, nil
	}
	text, ok := strings.CutPrefix(value, byDuration)
	if !ok {
		return OffsetReset{}, errOffsetReset
	}
	age, err := parseDuration(text)
	if err != nil {
		return OffsetReset{}, err
	}
	if age < 0 {
		return OffsetReset{}, errors.New("the duration must not be negative")
	}
	return OffsetReset{Kind: ResetByDuration, AgeMs: age}, nil
}

func parseInt32(value string) (int32, error) {
	v, err := strconv.ParseInt(trim(value), 10, 32)
	return int32(v), err
}

func parseBool(value string) (bool, error) {
	switch strings.ToLower(trim(value)) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, errors.New("not a boolean")
}
